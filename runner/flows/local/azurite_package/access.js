"use strict";
// Loaded into Azurite with `node --require`: who may use the blob service.
//
// Without this script, Azurite lets everybody who reaches its port
// - sign user delegation SAS, because the seed of their keys is a constant in its code,
// - use accounts with names such as `constructor`, whose key is empty,
// - read any blob of an account with a SAS that may write one: copies do not check their source,
// - send requests from a web page.
// If a change does not have its effect, because the code of Azurite is another, Azurite ends.
// See docs/decisions/0016-azurite-with-a-journal.md.

const crypto = require("crypto");
const fs = require("fs");
const http = require("http");
const path = require("path");

const blob = path.dirname(process.argv[1]);

function signUserKeysWithOwnSeed() {
  const seed = process.env.BATCH_EMULATOR_STORAGE_SEED;
  if (!seed) {
    throw new Error("BATCH_EMULATOR_STORAGE_SEED is not set");
  }
  require(path.join(blob, "utils", "constants")).USERDELEGATIONKEY_SIGNING_SEED = seed;
  const { getUserDelegationKeyValue } = require(path.join(blob, "utils", "utils"));
  const fields = ["oid", "tid", "start", "expiry", "b", "version"];
  const expected = crypto.createHmac("sha256", seed).update(fields.join("\n")).digest("base64");
  const given = fields.filter((field) => field !== "b");
  if (getUserDelegationKeyValue(...given) !== expected) {
    throw new Error("keys of users are not signed with the seed");
  }
  for (const user of ["authentication/BlobSASAuthenticator.js", "handlers/ServiceHandler.js"]) {
    if (!fs.readFileSync(path.join(blob, user), "utf8").includes("getUserDelegationKeyValue)(")) {
      throw new Error(`${user} makes keys of users in another way`);
    }
  }
}

function knowOnlyOwnAccounts() {
  const { default: Accounts } = require(path.join(blob, "..", "common", "AccountDataStore"));
  const { getAccount } = Accounts.prototype;
  Accounts.prototype.getAccount = function (name) {
    return Object.hasOwn(this.accounts, name) ? getAccount.call(this, name) : undefined;
  };
  if (new Accounts({}).getAccount("constructor") !== undefined) {
    throw new Error("an account named 'constructor' exists");
  }
}

// A request with a SAS may copy what an anonymous request could read from the URL of the source. A
// request that is signed with the key of the account may copy everything. The check asks this
// server, not the host in the URL, which the client chooses.
function checkSourcesOfCopies() {
  const { default: Handler } = require(path.join(blob, "handlers", "BlobHandler"));
  const { default: Errors } = require(path.join(blob, "errors", "StorageErrorFactory"));
  for (const name of ["startCopyFromURL", "copyFromURL"]) {
    const copy = Handler.prototype[name];
    if (copy === undefined) {
      throw new Error(`there is no ${name}`);
    }
    Handler.prototype[name] = async function (source, options, context) {
      if (context.request.getQuery("sig") !== undefined) {
        const status = await statusOf(source, context.request.getBodyStream().socket);
        if (status !== 200) {
          const message = "The source of the copy cannot be read.";
          throw Errors.getCannotVerifyCopySource(context.contextId, status, message);
        }
      }
      return copy.call(this, source, options, context);
    };
  }
}

function statusOf(source, { localAddress, localPort }) {
  return new Promise((resolve) => {
    const found = URL.canParse(source) ? new URL(source) : undefined;
    if (found === undefined) {
      resolve(400);
      return;
    }
    const target = { host: localAddress, port: localPort, path: found.pathname + found.search };
    http
      .request({ ...target, method: "HEAD", agent: false }, (response) => {
        response.resume();
        resolve(response.statusCode);
      })
      .on("error", () => resolve(500))
      .end();
  });
}

// As in batch_emulator/web_pages.py, but a browser may play a video or sound at a typed address: after
// the typed request, it sends another one for the content.
function refuseWebPages() {
  const { emit } = http.Server.prototype;
  http.Server.prototype.emit = function (event, request, response, ...rest) {
    const reason = event === "request" ? reasonToRefuse(request.headers) : undefined;
    if (reason === undefined) {
      return emit.call(this, event, request, response, ...rest);
    }
    const code = "AuthorizationFailure";
    const head = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>';
    const headers = {
      "connection": "close", // the body of the request is not read
      "content-type": "application/xml",
      "x-ms-error-code": code,
    };
    response.writeHead(403, headers);
    response.end(`${head}\n<Error><Code>${code}</Code><Message>${reason}</Message></Error>`);
    return true;
  };
}

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])?(:\d*)?$/i;

function reasonToRefuse(headers) {
  const site = headers["sec-fetch-site"] ?? "none";
  const isPlayed = site === "same-origin" && headers["sec-fetch-dest"] === "video";
  if (headers.origin !== undefined || (site !== "none" && !isPlayed)) {
    return "Requests of web pages are refused.";
  }
  const host = headers.host ?? "";
  const shown = host.slice(0, 64).replace(/[^\w.:-]/g, "?");
  return LOOPBACK.test(host) ? undefined : `Host '${shown}' is not a loopback address.`;
}

try {
  signUserKeysWithOwnSeed();
  knowOnlyOwnAccounts();
  checkSourcesOfCopies();
  refuseWebPages();
} catch (err) {
  console.error(`error: cannot restrict access to Azurite: ${err.message.split("\n")[0]}`);
  process.exit(1);
}
