// Times in the reader's zone, the newest line of a log, and a word when the server is gone.
"use strict";
(() => {
  const zoned = (root) => {
    for (const each of root.querySelectorAll("time[datetime]:not([data-age])")) {
      const at = new Date(each.dateTime);
      if (isNaN(at)) continue;
      each.textContent = "short" in each.dataset ? at.toLocaleTimeString() : at.toLocaleString();
    }
  };
  const follow = (log) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (atEnd || !log.dataset.seen) log.scrollTop = log.scrollHeight;
    log.dataset.seen = "1";
  };
  const trouble = document.getElementById("trouble");
  const say = (text) => { trouble.textContent = text; };
  document.addEventListener("htmx:after:swap", () => {
    zoned(document);
    document.querySelectorAll("pre.log").forEach(follow);
  });
  document.addEventListener("htmx:sse:error", (event) => {
    say(event.detail.status === 401
      ? "This browser is signed out. Open the link that runner ui printed."
      : "The server of this page does not answer. This page tries again by itself.");
  });
  document.addEventListener("htmx:sse:after:connection", () => say(""));
  document.addEventListener("DOMContentLoaded", () => zoned(document));
})();
