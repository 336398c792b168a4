// The planner's page: load Python, then show the plan of the address and of each change. Python makes all that is shown.
const form = document.getElementById("settings"), loading = document.getElementById("loading");
const verdict = document.getElementById("verdict"), plan = document.getElementById("plan");
let started = false;  // whether a field is being changed: its first event is a new step of the browser's history

async function loaded() {
  const { loadPyodide } = await import("./pyodide/pyodide.mjs");
  const [python, archive] = await Promise.all([loadPyodide(), fetch(new URL("planner.zip", import.meta.url))]);
  python.unpackArchive(await archive.arrayBuffer(), "zip");
  return python.pyimport("course_lib.widgets.planner.page").Planner.callKwargs({ hardware: "h100-infiniband" });
}

function show(planner, query, step) {
  const shown = JSON.parse(planner.show(query, step)), open = plan.querySelector("details")?.open;
  verdict.innerHTML = shown.verdict;
  plan.innerHTML = shown.plan;
  if (open) plan.querySelector("details").open = true;
  return shown;
}

function read(planner, step) {
  const { values } = show(planner, location.hash, step);
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
}

function write(planner) {
  const { address } = show(planner, new URLSearchParams(new FormData(form)).toString(), !started);
  history[started ? "replaceState" : "pushState"](null, "", `#${address}`);
  started = true;
}

function start(planner) {
  form.addEventListener("input", () => write(planner));
  form.addEventListener("change", () => { started = false; });
  form.addEventListener("submit", event => event.preventDefault());
  addEventListener("popstate", () => read(planner, true));
  form.querySelector("fieldset").disabled = false;
  loading.hidden = true;
  read(planner, false);
}

plan.toggleAttribute("inert", Boolean(location.hash));  // the first plan is not the one of the address
loaded().then(start, error => {
  loading.textContent = `Python could not be loaded (${error.message}). Below is the plan of the settings that are shown.`;
}).finally(() => plan.removeAttribute("inert"));
