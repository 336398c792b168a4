// The cursor of an image with places: it follows a slider or the pointer, and says what is there. It runs when the image
// has loaded, in a notebook that is trusted. 10.46 % and 88 % are the left edge and the width of plot_memory's panels.
if (!this.nextSibling) {
  const {labels, panels} = JSON.parse(this.dataset.places), box = this.parentNode, all = Object.entries(panels);
  const short = (count, unit) => `${Number((count / unit).toPrecision(3))}`;
  const bytes = count => count < 1e3 ? `${count} bytes` : count < 1e6 ? `${short(count, 1e3)} kB` : `${short(count, 1e6)} MB`;
  const at = places => places[Math.min(places.length - 1, Math.floor(slider.value / 1000 * places.length))];
  box.insertAdjacentHTML("beforeend", `
    <i style="position: absolute; border-left: 2px solid #d9573b; pointer-events: none"></i>
    <input type="range" aria-label="Moment" max="1000" style="display: block; width: 88%; height: 24px; margin: 0 0 0 10.46%">
    <output style="display: block; position: sticky; left: 0; min-height: 3em; max-width: calc(100vw - 48px)"></output>`);
  const [mark, slider, words] = [...box.children].slice(1);
  slider.oninput = () => {
    const legend = this.clientWidth * 26 / 784;  // its height
    mark.style.top = `${legend}px`;
    mark.style.height = `${this.clientHeight - legend}px`;
    mark.style.left = `${10.46 + 0.088 * slider.value}%`;
    words.innerText = all.map(([title, places]) => `${title}: ${bytes(at(places)[0])} · ${labels[at(places)[1]]}`).join("\n");
  };
  this.onpointermove = event => {
    slider.value = (event.offsetX / this.clientWidth - 0.1046) / 0.00088;
    slider.oninput();
  };
  const first = all.length ? all[0][1].map(([held]) => held) : [];
  slider.value = 1000 * (first.indexOf(Math.max(...first)) + 0.5) / first.length;
  slider.oninput();
}
