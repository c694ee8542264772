"use strict";
// Loaded into Azurite with `node --require`: signatures that are valid for parts of a container.
//
// The SAS of Azure are for a blob or for a container; a SAS of a folder needs a hierarchical
// namespace, which Azurite lacks. A scoped SAS is the query
//
//     sv=runner-1&se=<expiry>&scope=<entries>&sig=<signature>
//
// with entries separated by commas, `<rights>~<prefix>` or `<rights>=<blob>`. Names are
// percent-encoded, and `*` stands for one digit or lower-case letter. The longest entry that matches
// a name decides. A request with such a signature is checked here, and then passed on with a SAS of
// exactly this blob and operation. Whatever is not allowed here is refused.
// See docs/decisions/0027-signatures-for-parts-of-a-container.md.

const crypto = require("crypto");
const http = require("http");

const VERSION = "runner-1";
const SAS_VERSION = "2021-12-02"; // of the SAS that Azurite gets
const CONTEXT = "runner scoped SAS 1"; // the account key signs only this text for scopes
const ENTRY = /^([racwdlm]+)([~=])([\w\-.~/%*]*)$/;
const EXPIRY = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/;
const CONTAINER = /^[a-z0-9-]{3,63}$/;
const MAX_KNOWN = 2000;
const RESIGNED_MS = 60_000; // Azurite checks the time when a request begins
const REFUSED_IN_NAME = /[\x00-\x1f\x7f\\]|(?:^|\/)\.{1,2}(?:\/|$)/;
const HEADERS = new Set([
  "x-ms-blob-condition-appendpos",
  "x-ms-blob-content-type",
  "x-ms-blob-type",
  "x-ms-client-request-id",
  "x-ms-copy-source",
  "x-ms-date",
  "x-ms-range",
  "x-ms-source-range",
  "x-ms-version",
]);
const CONDITIONS = ["if-match", "if-modified-since", "if-unmodified-since"];
const OWN = new Set(["sv", "se", "scope", "sig"]); // parameters of a scoped SAS

const accounts = new Map(); // account -> its keys

for (const account of (process.env.AZURITE_ACCOUNTS ?? "").split(";")) {
  const [name, ...keys] = account.split(":");
  const secrets = keys.map((key) => Buffer.from(key, "base64"));
  accounts.set(name, secrets);
}

class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const denied = (what) => new Refusal("AuthorizationPermissionMismatch", what);
const invalid = (what) => new Refusal("AuthenticationFailed", what);

function hmac(key, text) {
  return crypto.createHmac("sha256", key).update(text, "utf8").digest();
}

// Return the entries of a scope, the longest first.
function parseScope(scope) {
  return (scope === "" ? [] : scope.split(","))
    .map((text) => {
      const found = ENTRY.exec(text);
      if (found === null) {
        throw invalid("the scope is malformed");
      }
      const [, rights, kind, raw] = found;
      const parts = raw.split("*").map(decode);
      const literal = parts.map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
      const isExact = kind === "=";
      const pattern = new RegExp(`^${literal.join("[0-9a-z]")}${isExact ? "$" : ""}`, "su");
      return { rights, isExact, pattern, length: [...parts.join("*")].length };
    })
    .sort((a, b) => b.length - a.length || b.isExact - a.isExact);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    throw denied("a name is not encoded correctly");
  }
}

const known = new Map(); // scopes whose signature is valid

// Return the entries of a scoped SAS. Throws if it is not valid now.
function verify(account, container, signed) {
  const { sv, se, scope, sig } = signed;
  if (sv !== VERSION || !EXPIRY.test(se ?? "") || scope === undefined || sig === undefined) {
    throw invalid("the signature is malformed");
  }
  const text = [se, account, container, scope].join("\n");
  const id = `${sig}\n${text}`;
  let entries = known.get(id);
  if (entries === undefined) {
    const given = Buffer.from(sig, "base64url");
    const isSigned = (accounts.get(account) ?? []).some((secret) => {
      const expected = hmac(hmac(secret, CONTEXT), text);
      return given.length === expected.length && crypto.timingSafeEqual(given, expected);
    });
    if (!isSigned) {
      throw invalid("Signature did not match");
    }
    entries = parseScope(scope);
    if (known.size >= MAX_KNOWN) {
      known.delete(known.keys().next().value);
    }
    known.set(id, entries);
  }
  if (!(Date.now() < Date.parse(se))) {
    throw invalid("Signature not valid in the specified time frame");
  }
  return entries;
}

// Return the rights for a blob, or for listing the blobs that begin with a prefix.
function rightsFor(entries, name, isPrefix = false) {
  const entry = entries.find((each) => !(isPrefix && each.isExact) && each.pattern.test(name));
  return entry?.rights ?? "";
}

// Return the parameters of a query, decoded except for those of the signature.
function parseQuery(raw) {
  const signed = {};
  const query = {};
  for (const pair of raw.split("&")) {
    const at = pair.indexOf("=");
    const [name, value] = at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)];
    const into = OWN.has(name) ? signed : query;
    if (!/^[a-z]+$/.test(name) || Object.hasOwn(into, name)) {
      throw denied("a parameter is unknown or occurs twice");
    }
    into[name] = OWN.has(name) ? value : decode(value.replaceAll("+", " "));
  }
  return { signed, query };
}

function only(query, ...names) {
  const other = Object.keys(query).find((name) => !names.includes(name));
  if (other !== undefined) {
    throw denied(`the parameter ${other} is not allowed in this request`);
  }
}

// Return the operation of a request: the rights of which it needs one, and what Azurite is to allow.
function operation(method, headers, query, blob) {
  const isNew = headers["if-none-match"] === "*" && CONDITIONS.every((name) => !(name in headers));
  const creates = isNew ? "wc" : "w";
  const type = headers["x-ms-blob-type"];
  const copies = "x-ms-copy-source" in headers;
  if (blob === undefined) {
    only(query, "restype", "comp", "prefix", "include", "maxresults", "marker", "timeout");
    const { restype, comp, include = "metadata" } = query;
    if (method !== "GET" || restype !== "container" || comp !== "list" || include !== "metadata") {
      throw denied("the container can only be listed");
    }
    return { needs: "l", permission: "l" };
  }
  only(query, "comp", "blockid", "timeout");
  const { comp, blockid } = query;
  if (copies && !(method === "PUT" && comp === "block")) {
    throw denied("only a block can be copied");
  }
  if (type !== undefined && (method !== "PUT" || comp !== undefined)) {
    throw denied("the header x-ms-blob-type is not allowed in this request");
  }
  if ((blockid !== undefined) !== (comp === "block")) {
    throw denied("the parameter blockid is not allowed in this request");
  }
  switch (`${method} ${comp ?? ""}`) {
    case "GET ":
    case "HEAD ":
      return { needs: "r", permission: "r" };
    case "DELETE ":
      return { needs: "d", permission: "d" };
    case "PUT ":
      if (type !== "BlockBlob" && type !== "AppendBlob") {
        throw denied("only block and append blobs can be written");
      }
      return { needs: creates, permission: "w" };
    case "PUT block": // of a blob that exists, only a block list can commit it
      return { needs: "wc", permission: "w" };
    case "PUT blocklist":
      return { needs: creates, permission: "w" };
    case "PUT appendblock":
      return { needs: "a", permission: "a" };
    case "PUT metadata":
      return { needs: "wm", permission: "w" };
    default:
      throw denied("the operation is not allowed");
  }
}

function checkHeaders(headers) {
  for (const name of Object.keys(headers)) {
    const isKnown = HEADERS.has(name) || name.startsWith("x-ms-meta-");
    // Azurite takes the method from the header x-http-method.
    if ((name.startsWith("x-ms-") && !isKnown) || name.startsWith("x-http-method")) {
      throw denied(`the header ${name} is not allowed`);
    }
  }
  if ("authorization" in headers) {
    throw invalid("a request has one credential");
  }
}

// Return the URL that Azurite gets instead of `url`. Throws a Refusal.
function translate(method, url, headers) {
  const at = url.indexOf("?");
  const path = url.slice(0, at).split("/");
  const [before, account, container, ...rest] = path;
  const { signed, query } = parseQuery(url.slice(at + 1));
  if (before !== "" || !accounts.has(account) || !CONTAINER.test(container ?? "")) {
    throw denied("the signature is for the blobs of a container");
  }
  const entries = verify(account, container, signed);
  checkHeaders(headers);
  const blob = rest.length === 0 ? undefined : decode(rest.join("/"));
  if (blob !== undefined && (blob === "" || REFUSED_IN_NAME.test(blob))) {
    throw denied("the name of the blob is not allowed");
  }
  const { needs, permission } = operation(method, headers, query, blob);
  const rights = rightsFor(entries, blob ?? query.prefix ?? "", blob === undefined);
  if (![...needs].some((right) => rights.includes(right))) {
    throw denied("the signature does not include this operation");
  }
  return resigned(account, container, blob, permission, query);
}

function resigned(account, container, blob, permission, query) {
  const expiry = `${new Date(Date.now() + RESIGNED_MS).toISOString().slice(0, 19)}Z`;
  const resource = blob === undefined ? "c" : "b";
  const names = blob === undefined ? [account, container] : [account, container, blob];
  const fields = ["", "", "", SAS_VERSION, resource, "", "", "", "", "", "", ""];
  const text = [permission, "", expiry, `/blob/${names.join("/")}`, ...fields].join("\n");
  const sas = { sv: SAS_VERSION, sr: resource, sp: permission, se: expiry };
  const sig = hmac(accounts.get(account)[0], text).toString("base64");
  const encoded = names.flatMap((name) => name.split("/")).map(encodeURIComponent);
  const pairs = Object.entries({ ...query, ...sas, sig });
  const written = pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return `/${encoded.join("/")}?${written.join("&")}`;
}

function refuse(request, response, { code, message }) {
  const body = `<?xml version="1.0" encoding="utf-8"?><Error><Code>${code}</Code><Message>${message}</Message></Error>`;
  response.writeHead(403, {
    "content-length": Buffer.byteLength(body),
    "content-type": "application/xml",
    "x-ms-error-code": code,
  });
  response.end(request.method === "HEAD" ? undefined : body);
}

const { emit } = http.Server.prototype;

// A request without a scope is none of this script's. Without its scope, a scoped SAS is invalid.
http.Server.prototype.emit = function (event, request, response) {
  if (event === "request" && /[?&]scope=/.test(request.url)) {
    try {
      request.url = translate(request.method, request.url, request.headers);
    } catch (err) {
      const why = err instanceof Refusal ? err : denied("the request cannot be read");
      refuse(request, response, why);
      return true;
    }
  }
  return emit.apply(this, arguments);
};
