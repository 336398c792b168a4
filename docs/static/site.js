// What the theme leaves out for readers with a keyboard or a screen reader: scrolling code, the level of a caption.
for (const code of document.querySelectorAll("pre")) if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", 2);

// The front page's film plays once by itself, unless the reader wants less motion.
addEventListener("load", () => {
  const film = document.querySelector(".tag_film iframe");
  if (film && !matchMedia("(prefers-reduced-motion: reduce)").matches) film.contentDocument.getElementById("play").click();
});
