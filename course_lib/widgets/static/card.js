// The handler of the style sheet of each widget of the course: `this` is the <style>. It runs again when JupyterLab takes
// a cell that scrolls out of sight off the page, and puts it back.
const root = this.closest('.course-widget');
if ('listens' in root.dataset) return;
root.dataset.listens = '';
let acted = null; // where the learner acted last: a card and an action

const act = (element, action) => {
  const card = element.closest('.course-card');
  const inbox = card.querySelector('.course-inbox input');
  const fields = {};
  for (const form of card.querySelectorAll('form'))
    for (const [name, value] of new FormData(form)) fields[name] = name in fields ? `${fields[name]}, ${value}` : value;
  const events = JSON.parse(inbox.value || '[]').slice(-9);
  events.push([(events.at(-1)?.[0] ?? 0) + 1, action, fields]);
  inbox.value = JSON.stringify(events);
  inbox.dispatchEvent(new Event('change', {bubbles: true}));
  delete card.dataset.changed;
  acted = {card, action};
};

root.addEventListener('click', event => {
  const button = event.target.closest('button[data-action]');
  if (button) act(button, button.dataset.action);
});
root.addEventListener('submit', event => {
  event.preventDefault();
  act(event.target, event.target.dataset.action);
});
for (const type of ['input', 'change']) root.addEventListener(type, event => {
  const form = event.target.closest('form'), card = event.target.closest('.course-card');
  if (form && !form.dataset.on) card.dataset.changed = ''; // the feedback is about the answer before
  if (form?.dataset.on === type) act(form, form.dataset.action);
});

// When the part with the focus is written again, the focus goes to its successor, unless it went elsewhere before. Without
// a successor it goes to the cell's next card. After the last it goes to the next cell, which Shift+Enter then runs:
// JupyterLab runs nothing while no cell has the focus.
document.addEventListener('focusin', () => { acted = null; });
new MutationObserver(() => {
  if (acted && document.activeElement === document.body) {
    const {card, action} = acted;
    const choices = [`button[data-action="${action}"]`, 'form :checked', 'form :is(input, button)'];
    const found = choices.map(choice => card.querySelector(`${choice}:enabled`)).find(found => found);
    const cell = card.closest('.jp-Cell'), next = cell?.nextElementSibling;
    const fields = cell?.querySelectorAll('.course-card form :is(input, button):enabled') ?? [];
    const comesAfter = field => card.compareDocumentPosition(field) & Node.DOCUMENT_POSITION_FOLLOWING;
    const later = [...fields].find(field => comesAfter(field) && field.checkVisibility());
    (found ?? later ?? (next?.matches('.jp-Cell') ? next : cell))?.focus({preventScroll: true});
  }
}).observe(root, {childList: true, subtree: true});

// JupyterLab takes a letter that is typed outside of text for a command to the notebook: "m" makes the cell Markdown.
root.addEventListener('keydown', event => {
  const runs = event.shiftKey && event.key === 'Enter';
  if (!(runs || event.ctrlKey || event.altKey || event.metaKey)) event.stopPropagation();
});
