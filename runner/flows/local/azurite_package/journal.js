"use strict";
// Loaded into Azurite with `node --require`: metadata survives `kill -9`.
//
// Azurite keeps metadata in LokiJS, which writes a whole database to its file every five seconds.
// Here each change is a line in a journal beside that file, written before the response is sent.
// A start replays the journal over the file. A save begins a new journal, whose number is in the
// file, and deletes the earlier ones once it is complete.
// See docs/decisions/0016-azurite-with-a-journal.md.

const crypto = require("crypto");
const fs = require("fs");
const http = require("http");
const path = require("path");

const azurite = path.dirname(process.argv[1]);
const Loki = require(require.resolve("lokijs", { paths: [azurite] }));

const BLOCKS = "committedBlocksInOrder"; // of an append blob: one more with each append
// In the database: the number of the journal that continues it. LokiJS drops it, so that a database
// that was saved without this script does not have it.
const FIRST_JOURNAL = "firstJournal";
const LEAST_REWRITTEN_BYTES = 4 << 20;
const PIECE_BYTES = 1 << 20;
const LEAST_FREE_BYTES = 64 << 10;
const RESERVE_BYTES = 64 << 10; // for changes of requests that began before the disk was full
const RESERVED_FROM_BYTES = 4 << 20;
const TAKE_ROOM = new Set(["PATCH", "POST", "PUT"]);
const LOOK_FOR_FOLDER_MS = 1000;
const journals = new Map(); // by the file name of the database

class Journal {
  constructor(database) {
    this.database = database;
    this.reserve = `${database}.reserve`;
    const folder = fs.openSync(path.dirname(database), "r");
    this.folder = fs.fstatSync(folder).nlink > 0 ? folder : undefined; // if links are counted
    this.pending = []; // lines that are not in the file yet
    this.written = new WeakMap(); // document -> its array of blocks and how many are written
    this.saved = 0; // bytes of the database when it was last saved
    this.number = Math.max(0, ...this.files().map(({ number }) => number));
    this.begin();
  }

  begin() {
    this.number += 1;
    this.fd = undefined;
    this.size = 0;
  }

  // Return the numbers and paths of the journals on disk, oldest first.
  files() {
    const prefix = `${path.basename(this.database)}.journal-`;
    const folder = path.dirname(this.database);
    return fs
      .readdirSync(folder)
      .filter((name) => name.startsWith(prefix))
      .map((name) => ({ number: Number(name.slice(prefix.length)), file: path.join(folder, name) }))
      .sort((a, b) => a.number - b.number);
  }

  put(collection, doc) {
    const blocks = doc[BLOCKS];
    const before = this.written.get(doc);
    if (before !== undefined && before.blocks === blocks && before.count <= blocks.length) {
      const rest = { ...doc, [BLOCKS]: undefined };
      this.add(["grow", collection, rest, before.count, blocks.slice(before.count)]);
    } else {
      this.add(["put", collection, doc]);
    }
    if (Array.isArray(blocks)) {
      this.written.set(doc, { blocks, count: blocks.length });
    }
  }

  remove(collection, doc) {
    this.add(["remove", collection, doc.$loki]);
  }

  add(record) {
    if (this.pending.push(`${JSON.stringify(record)}\n`) === 1) {
      process.nextTick(() => {
        try {
          this.flush();
        } catch {
          // The response repeats it.
        }
      });
    }
  }

  // Write the pending lines. Throws if the disk does not take them all; then none is written.
  flush() {
    if (this.pending.length === 0) {
      return;
    }
    const data = Buffer.from(this.pending.join(""));
    if (this.fd === undefined) {
      exitIfDeleted();
    }
    this.fd ??= fs.openSync(`${this.database}.journal-${this.number}`, "a", 0o600);
    try {
      this.write(data);
    } catch (err) {
      if (err.code !== "ENOSPC" || !fs.existsSync(this.reserve)) {
        throw err;
      }
      fs.unlinkSync(this.reserve);
      this.write(data);
    }
    this.size += data.length;
    this.pending = [];
  }

  write(data) {
    try {
      for (let done = 0; done < data.length; ) {
        done += fs.writeSync(this.fd, data, done);
      }
    } catch (err) {
      fs.ftruncateSync(this.fd, this.size);
      throw err;
    }
  }

  // Write the reserve if the disk has room for it. Random bytes cannot be compressed.
  keepReserve() {
    if (fs.existsSync(this.reserve) || freeBytes(this.database) < RESERVED_FROM_BYTES) {
      return;
    }
    try {
      fs.writeFileSync(this.reserve, crypto.randomBytes(RESERVE_BYTES), { mode: 0o600 });
    } catch {
      // The folder was deleted, or the disk is full again.
    }
  }

  // Begin a new journal. Return the files that a save of the current state replaces.
  rotate() {
    this.flush();
    const replaced = this.files().map(({ file }) => file);
    if (this.fd !== undefined) {
      fs.closeSync(this.fd);
      this.begin();
    }
    return replaced;
  }

  // Apply the journals that continue a parsed database. Return false if there are none.
  replay(database) {
    const files = this.files();
    const first = database[FIRST_JOURNAL];
    const later = files.filter(({ number }) => number >= first); // the database contains the others
    this.number = Math.max(this.number, first ?? 0);
    const foreign = first === undefined ? files : later;
    if (foreign.length > 0 && foreign[0].number !== first) {
      this.setAside(foreign);
      return false;
    }
    later.forEach(({ file }) => replayFile(database, file));
    return later.length > 0;
  }

  // A program without the journal has written the database since, or it was copied from elsewhere.
  setAside(files) {
    for (const { file } of files) {
      const aside = `${file.replace(".journal-", ".unused-journal-")}-${Date.now()}`;
      fs.renameSync(file, aside);
      console.error(`${file} does not continue the database. It is not applied; it is now ${aside}`);
    }
  }
}

function replayFile(database, file) {
  const collections = new Map();
  for (const collection of database.collections) {
    const docs = new Map(collection.data.map((doc) => [doc.$loki, doc]));
    collections.set(collection.name, { collection, docs });
  }
  for (const line of completeLines(file)) {
    const [what, name, ...rest] = JSON.parse(line);
    const { collection, docs } = collections.get(name) ?? {};
    if (collection === undefined) {
      report(`${file}: lines of ${name}, which the database does not have, are not applied`);
      continue;
    }
    if (what === "remove") {
      docs.delete(rest[0]);
      continue;
    }
    const [doc, count, blocks] = rest;
    if (what === "grow") {
      const before = docs.get(doc.$loki)?.[BLOCKS];
      if (before === undefined) {
        report(`${file}: a line that continues a missing document of ${name} is not applied`);
        continue;
      }
      before.splice(count, Infinity, ...blocks);
      doc[BLOCKS] = before;
    }
    docs.set(doc.$loki, doc);
    collection.maxId = Math.max(collection.maxId, doc.$loki);
  }
  for (const { collection, docs } of collections.values()) {
    collection.data = [...docs.values()].sort((a, b) => a.$loki - b.$loki);
  }
}

// A journal may be larger than a string can be (512 MB).
function* completeLines(file) {
  const fd = fs.openSync(file, "r");
  try {
    const piece = Buffer.allocUnsafe(PIECE_BYTES);
    let begun = []; // of a line that goes on in the next piece
    for (let size; (size = fs.readSync(fd, piece)) > 0; ) {
      let start = 0;
      for (let end; (end = piece.subarray(0, size).indexOf("\n", start)) >= 0; start = end + 1) {
        yield Buffer.concat([...begun, piece.subarray(start, end)]).toString();
        begun = [];
      }
      begun.push(Buffer.from(piece.subarray(start, size)));
    }
  } finally {
    fs.closeSync(fd);
  }
}

function journalOf(file) {
  if (!journals.has(file)) {
    journals.set(file, new Journal(file));
  }
  return journals.get(file);
}

const { addCollection, autosaveDirty } = Loki.prototype;

Loki.prototype.addCollection = function (name, options) {
  const collection = addCollection.call(this, name, options);
  const journal = journalOf(this.filename);
  collection.on(["insert", "update"], (doc) => journal.put(name, doc));
  collection.on("delete", (doc) => journal.remove(name, doc));
  return collection;
};

// A save costs as much as all metadata. With a journal it is due only when that has grown as large
// as the database, and at the end (the handle is null then).
Loki.prototype.autosaveDirty = function () {
  const { size, saved } = journalOf(this.filename);
  const due = this.autosaveHandle === null || size > Math.max(saved, LEAST_REWRITTEN_BYTES);
  return due && autosaveDirty.call(this);
};

const adapter = Loki.LokiFsAdapter.prototype;
const { loadDatabase } = adapter;

adapter.loadDatabase = function (file, callback) {
  loadDatabase.call(this, file, (text) => {
    if (typeof text !== "string" || text === "") {
      callback(text);
      return;
    }
    let database;
    try {
      database = JSON.parse(text);
      if (journalOf(file).replay(database)) {
        database.databaseVersion = 1; // Loki builds the indexes, as for a file of its version 1
      }
    } catch (err) {
      database = new Error(`Cannot read ${file} and its journal: ${err.message}`);
    }
    callback(database);
  });
};

// LokiJS calls it in the same turn in which it has serialized the database.
adapter.saveDatabase = function (file, text, callback) {
  const journal = journalOf(file);
  const save = async () => {
    exitIfDeleted();
    const replaced = journal.rotate();
    const marked = `{"${FIRST_JOURNAL}":${journal.number},${text.slice(1)}`;
    await fs.promises.writeFile(`${file}~`, marked, { mode: 0o600, flush: true });
    await fs.promises.rename(`${file}~`, file);
    journal.saved = text.length;
    for (const old of replaced) {
      await fs.promises.unlink(old); // oldest first: what is left continues without a gap
    }
  };
  const failed = async (err) => {
    await fs.promises.rm(`${file}~`, { force: true });
    callback(err);
  };
  // LokiJS throws the error of a save that it began by itself. The journals have all that it lacks,
  // and the next save replaces them.
  save()
    .then(() => callback(null), failed)
    .catch((err) => report(`Cannot save ${file}: ${err.message}`));
};

// On a full disk the log cannot be written either. Without a listener that error ends the process.
for (const stream of [process.stdout, process.stderr]) {
  stream.on("error", () => {});
}

// A user may delete the folder while Azurite runs. It must not save the blobs of that folder in a
// new one at the same path, whose Azurite would list them but lack their content. A deleted folder
// has no links.
function exitIfDeleted() {
  for (const { folder, database } of journals.values()) {
    if (folder !== undefined && fs.fstatSync(folder).nlink === 0) {
      report(`${path.dirname(database)} was deleted`);
      process.exit(1);
    }
  }
}

setInterval(() => {
  exitIfDeleted();
  journals.forEach((journal) => journal.keepReserve());
}, LOOK_FOR_FOLDER_MS).unref();

let reported = "";

function report(text) {
  if (text !== reported) {
    reported = text; // once, not for each request
    console.error(text);
  }
}

// Return the free bytes of the disk of a file; Infinity if this Node.js cannot tell.
function freeBytes(file) {
  if (fs.statfsSync === undefined) {
    return Infinity;
  }
  const { bavail, bsize } = fs.statfsSync(path.dirname(file));
  return bavail * bsize;
}

// Return the reason if the disk of the databases is full, or too full for the body of a request.
function fullReason(request) {
  const needed = Number(request?.headers["content-length"]) || 0;
  for (const file of journals.keys()) {
    if (freeBytes(file) < LEAST_FREE_BYTES + needed) {
      return `the disk of ${path.dirname(file)} is full`;
    }
  }
  return undefined;
}

// Answer 503 with a reason that clients show. A body would belong to the other status, and clients
// prefer the code in it to the header.
function refuse(response, reason) {
  response.setHeader("x-ms-error-code", "ServerBusy");
  response.setHeader("retry-after", 1);
  response.setHeader("content-length", 0);
  response._hasBody = false;
  return writeHead.call(response, 503, reason.replace(/[^ -~]/g, "?"));
}

const { writeHead } = http.ServerResponse.prototype;

// No response precedes its change, nor one that it saw. While the disk is full, clients try again.
http.ServerResponse.prototype.writeHead = function (status, ...rest) {
  try {
    for (const journal of journals.values()) {
      journal.flush();
    }
  } catch (err) {
    const reason = `Cannot write the journal: ${err.message}`;
    report(reason);
    return refuse(this, fullReason() ?? reason);
  }
  // Azurite answers 500 if it cannot write the content of a blob.
  const full = status === 500 ? fullReason(this.req) : undefined;
  return full === undefined ? writeHead.call(this, status, ...rest) : refuse(this, full);
};

// While the disk is full, a request that takes room is refused before it changes the memory: reads
// would wait for that change.
const { emit } = http.Server.prototype;

http.Server.prototype.emit = function (event, ...rest) {
  const [request, response] = rest;
  const takesRoom = event === "request" && TAKE_ROOM.has(request.method);
  const full = takesRoom ? fullReason() : undefined;
  if (full === undefined) {
    return emit.call(this, event, ...rest);
  }
  refuse(response, full).end();
  request.resume();
  return true;
};

// XML has no control characters, and Azurite then answers 500: one blob with an escape in its name
// would end every listing of its container, for everybody. Azure encodes such names; here they get
// a replacement character, which no name of ours has.
const ILLEGAL = /[\0-\x08\x0b\f\x0e-\x1f\ufffe\uffff]|\p{Surrogate}/gu;
const Stringifier = require(require.resolve("xmlbuilder/lib/XMLStringifier", { paths: [azurite] }));
const { assertLegalChar } = Stringifier.prototype;
Stringifier.prototype.assertLegalChar = function (text) {
  const legal = typeof text === "string" ? text.replace(ILLEGAL, "\ufffd") : text;
  return assertLegalChar.call(this, legal);
};
