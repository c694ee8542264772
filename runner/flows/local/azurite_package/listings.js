"use strict";
// Loaded into Azurite with `node --require`: a request for blobs costs what it returns.
//
// Azurite keeps the blobs of all containers in one collection of LokiJS. A listing compares every
// name with a regular expression, and a deletion scans the collection several times: 0.7 s for each
// blob among 450,000. LokiJS keeps an index of the names, in which blobs with a prefix are
// neighbours. This script uses it, and leaves out the indexes of properties that all blobs share.
// See docs/decisions/0033-index-by-time.md.

const path = require("path");

const azurite = path.dirname(process.argv[1]);
const Loki = require(require.resolve("lokijs", { paths: [azurite] }));

const BLOBS = "$BLOBS_COLLECTION$";
const INDEXED = "name";
const AFTER_ALL = "\uffff"; // no name of a blob contains it
const MOST_ALONE = 8; // documents that are removed one by one

const isBlobs = (collection) => collection !== undefined && collection.name === BLOBS;

const { addCollection, loadJSONObject } = Loki.prototype;

Loki.prototype.addCollection = function (name, options) {
  const given = name === BLOBS ? { ...options, indices: [INDEXED] } : options;
  return addCollection.call(this, name, given);
};

Loki.prototype.loadJSONObject = function (database, options) {
  for (const collection of database.collections ?? []) {
    const { [INDEXED]: kept } = collection.binaryIndices ?? {};
    if (isBlobs(collection) && kept !== undefined) {
      collection.binaryIndices = { [INDEXED]: kept };
    }
  }
  return loadJSONObject.call(this, database, options);
};

const { find } = Loki.Resultset.prototype;

// LokiJS uses an index only for the first condition of a query.
Loki.Resultset.prototype.find = function (query, firstOnly) {
  if (!isBlobs(this.collection) || this.filterInitialized || query?.[INDEXED] === undefined) {
    return find.call(this, query, firstOnly);
  }
  const { [INDEXED]: name, ...rest } = query;
  const prefix = typeof name === "object" ? prefixOf(name) : undefined;
  const condition = prefix === undefined ? name : { $between: [prefix, prefix + AFTER_ALL] };
  const found = find.call(this, { [INDEXED]: condition });
  return Object.keys(rest).length === 0 && !firstOnly ? found : find.call(found, rest, firstOnly);
};

// Return the prefix of names that Azurite searches, or undefined for another query. LokiJS orders
// texts that are numbers by their value; a text with a slash is none.
function prefixOf({ $regex: pattern, ...others }) {
  if (typeof pattern !== "string" || Object.keys(others).length > 0 || !pattern.includes("/")) {
    return undefined;
  }
  const text = pattern.slice(1).replace(/\\(.)/gs, "$1");
  const escaped = text.replace(/[-/\\^$*+?.()|[\]{}]/g, "\\$&"); // as Azurite does
  return pattern === `^${escaped}` ? text : undefined;
}

const { findAndRemove } = Loki.Collection.prototype;

Loki.Collection.prototype.findAndRemove = function (query) {
  const found = isBlobs(this) ? this.find(query) : undefined;
  if (found === undefined || found.length > MOST_ALONE) {
    return findAndRemove.call(this, query);
  }
  return found.forEach((document) => this.remove(document));
};
