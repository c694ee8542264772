// A pool, a job with 150 tasks, their output; then everything is deleted.
"use strict";

const assert = require("node:assert");
const { setTimeout: sleep } = require("node:timers/promises");
const { BatchServiceClient, BatchSharedKeyCredentials } = require("@azure/batch");

const TASKS = 150;
const done = (check) => console.log(`done: ${check}`);

async function read(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts).toString();
}

async function exists(client, pool) {
  return (await client.pool.exists(pool)).body;
}

async function main() {
  const { AZURE_BATCH_ACCOUNT, AZURE_BATCH_ACCESS_KEY, AZURE_BATCH_ENDPOINT } = process.env;
  const credentials = new BatchSharedKeyCredentials(AZURE_BATCH_ACCOUNT, AZURE_BATCH_ACCESS_KEY);
  const client = new BatchServiceClient(credentials, AZURE_BATCH_ENDPOINT);
  const [pool, job] = ["js-pool", "js-job"];

  await client.pool.add({
    id: pool,
    vmSize: "standard_d2s_v3",
    targetDedicatedNodes: 2,
    virtualMachineConfiguration: {
      imageReference: { publisher: "canonical", offer: "ubuntu-24_04-lts", sku: "server" },
      nodeAgentSKUId: "batch.node.ubuntu 24.04",
    },
  });
  assert(await exists(client, pool));
  done("pool");

  await client.job.add({ id: job, poolInfo: { poolId: pool } });
  done("job");

  const tasks = Array.from({ length: TASKS }, (_, number) => ({
    id: `task-${number}`,
    commandLine: `/bin/sh -c 'echo hello from ${number}'`,
  }));
  for (let first = 0; first < TASKS; first += 100) {
    const added = await client.task.addCollection(job, tasks.slice(first, first + 100));
    assert(added.value.every(({ status }) => status.toLowerCase() === "success"));
  }
  done("tasks");

  const counts = async () => (await client.job.getTaskCounts(job)).taskCounts;
  while ((await counts()).completed < TASKS) await sleep(200);
  assert.strictEqual((await counts()).succeeded, TASKS);
  done("counts");

  // a blank filter is sent, and signed, as it is
  const options = { taskListOptions: { filter: "", maxResults: 100 } };
  let page = await client.task.list(job, options);
  const listed = [...page];
  while (page.odatanextLink) {
    page = await client.task.listNext(page.odatanextLink);
    listed.push(...page);
  }
  assert.strictEqual(listed.length, TASKS);
  assert(listed.every((task) => task.state === "completed" && task.executionInfo.exitCode === 0));
  done("list");

  const file = await client.file.getPropertiesFromTask(job, "task-7", "stdout.txt");
  assert.strictEqual(file.contentLength, 13);
  assert(file.lastModified instanceof Date);
  const answer = await client.file.getFromTask(job, "task-7", "stdout.txt");
  assert.strictEqual(await read(answer.readableStreamBody), "hello from 7\n");
  done("output");

  await assert.rejects(client.task.get(job, "none"), { statusCode: 404, code: "TaskNotFound" });
  done("error");

  await client.job.deleteMethod(job);
  await client.pool.deleteMethod(pool);
  while (await exists(client, pool)) await sleep(200);
  done("deleted");
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
