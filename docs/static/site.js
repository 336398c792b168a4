// What the theme leaves out for readers with a keyboard or a screen reader: scrolling code, the level of a caption,
// and cells of a head that say nothing.
for (const code of document.querySelectorAll("pre, .output")) if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", 2);
for (const head of document.querySelectorAll("th")) if (!head.textContent.trim()) head.replaceWith(document.createElement("td"));

// The front page's film plays once by itself, unless the reader wants less motion.
addEventListener("load", () => {
  const film = document.querySelector(".tag_film iframe");
  if (film && !matchMedia("(prefers-reduced-motion: reduce)").matches) film.contentDocument.getElementById("play").click();
});
