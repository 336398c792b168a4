// The planner's page: load Python, then show the plan of each change. page.py makes the form and every plan.
const form = document.getElementById("planner"), loading = document.getElementById("loading");
const verdict = document.getElementById("verdict"), plan = document.getElementById("plan");

async function loaded() {
  const { loadPyodide } = await import("./pyodide/pyodide.mjs");
  const [python, archive] = await Promise.all([loadPyodide(), fetch(new URL("planner.zip", import.meta.url))]);
  python.unpackArchive(await archive.arrayBuffer(), "zip");
  return python.pyimport("page").shown;
}

function value(field) {
  return field.type === "range" ? 2 ** field.value : JSON.parse(field.value);
}

function show(shown) {
  const fields = [...form.querySelectorAll("[name]")], open = plan.querySelector("details")?.open;
  for (const field of fields) if (field.type === "range") {
    field.nextElementSibling.value = value(field);
    field.setAttribute("aria-valuetext", value(field));
  }
  const result = shown.callKwargs(Object.fromEntries(fields.map(field => [field.name, value(field)])));
  [verdict.textContent, plan.innerHTML] = result;
  result.destroy();
  if (open) plan.querySelector("details")?.setAttribute("open", "");
}

try {
  const shown = await loaded();
  form.addEventListener("input", () => show(shown));
  form.addEventListener("submit", event => event.preventDefault());
  form.querySelector("fieldset").disabled = false;
  loading.hidden = true;
  show(shown);  // a browser may have kept the values of an earlier visit
} catch (error) {
  loading.textContent = `Python could not be loaded (${error.message}). Below is the plan of the settings that are shown.`;
}
