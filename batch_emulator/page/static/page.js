// Live updates, times in the zone of the reader, copy buttons. Every page works without this file.
"use strict";

const view = () => document.getElementById("view");
const EVERY_MS = 1000, MOVING_MS = 2000;

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    const clock = when.toLocaleTimeString([], { hour12: false });
    const day = when.toLocaleDateString("sv"); // 2026-11-29
    time.textContent = time.hasAttribute("data-date") ? `${day} ${clock}` : clock;
  }
}

// Change the old element into the new one; what did not change keeps its focus and selection.
function morph(old, next) {
  if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) return old.replaceWith(next);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  const edited = old === document.activeElement && old.matches("input, select, textarea");
  if (edited || old.isEqualNode(next)) return;
  const keep = old.nodeName === "DETAILS" ? ["open"] : [];
  for (const { name } of [...old.attributes])
    if (!next.hasAttribute(name) && !keep.includes(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const atEnd = old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
  const before = [...old.childNodes], after = [...next.childNodes];
  after.forEach((child, n) => (n < before.length ? morph(before[n], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
  if (old.classList.contains("output") && atEnd) old.scrollTop = old.scrollHeight;
}

async function fetched(address) {
  const answer = await fetch(address, { headers: { accept: "text/html" } });
  if (answer.status === 401) throw new Error("signed out");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  prepare(page);
  return page;
}

function prepare(root) {
  localTimes(root);
  for (const button of root.querySelectorAll("button.copy, button.update"))
    button.hidden = button.classList.contains("update") || !navigator.clipboard;
}

async function refresh() {
  const page = await fetched(location.href);
  const next = page.getElementById("view");
  if (next) morph(view(), next);
  if (document.title !== page.title) document.title = page.title;
}

function trouble(text) {
  const note = document.getElementById("trouble");
  if (note.textContent !== text) note.textContent = text;
  note.hidden = !text;
}

let known = "", refreshedAt = 0, tookMs = 0;
async function beat() {
  try {
    const answer = await fetch("/pulse");
    if (answer.status === 401) throw new Error("signed out");
    const pulse = await answer.text();
    const moving = view().hasAttribute("data-moving") && Date.now() - refreshedAt >= MOVING_MS;
    const form = view().querySelector("form[data-live]"); // what somebody is filling in stays
    if (!form && known && (pulse !== known || moving)) {
      const start = Date.now();
      await refresh();
      refreshedAt = Date.now();
      tookMs = refreshedAt - start;
    }
    known = pulse;
    trouble("");
  } catch (error) {
    trouble(error.message === "signed out"
      ? "You are signed out: open the link that the emulator printed."
      : "The emulator does not answer. This page goes on when it does.");
    known ||= "none";
  }
}

async function loop() {
  if (document.visibilityState === "visible") await beat();
  setTimeout(loop, Math.max(EVERY_MS, 10 * tookMs)); // a large page less often
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
  document.getElementById("live").textContent = "Copied";
});
document.addEventListener("change", (event) => {
  if (event.target.matches(".filters select")) event.target.form.requestSubmit();
});
document.addEventListener("input", async (event) => {
  const form = event.target.closest("form[data-live]");
  if (!form) return;
  const query = new URLSearchParams(new FormData(form));
  const page = await fetched(`${location.pathname}?${query}`).catch(() => null);
  const next = page?.getElementById("command");
  if (next) morph(document.getElementById("command"), next);
});

prepare(document);
for (const output of document.querySelectorAll("pre.output")) output.scrollTop = output.scrollHeight;
const done = new URL(location.href);
if (done.searchParams.has("done")) {
  document.getElementById("live").textContent = "Accepted";
  done.searchParams.delete("done");
  history.replaceState(null, "", done);
}
loop();
