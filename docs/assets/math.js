// Typesets the equations of a page; without scripts their LaTeX is shown.
for (const node of document.querySelectorAll(".arithmatex")) {
  const text = node.textContent.trim();
  const displayMode = text.startsWith("\\[");
  katex.render(text.slice(2, -2), node, { displayMode, throwOnError: false });
}
