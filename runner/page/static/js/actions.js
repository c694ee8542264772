// A button that copies the command beside it, where the browser allows it.
"use strict";
(() => {
  if (!navigator.clipboard) return;
  document.documentElement.classList.add("copies");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
})();
