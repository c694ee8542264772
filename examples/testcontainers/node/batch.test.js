// A task of Azure Batch, in a container of the emulator that lives as long as the tests.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import batch from "@azure/batch";
import { GenericContainer, Wait } from "testcontainers";

const IMAGE = process.env.BATCH_EMULATOR_IMAGE ?? "batch-emulator";

let emulator, client;

before(async () => {
  const key = randomBytes(64).toString("base64");
  emulator = await new GenericContainer(IMAGE)
    .withEnvironment({ BATCH_EMULATOR_KEY: key })
    .withCommand(["--boot-seconds", "0"])
    .withExposedPorts(8900)
    .withWaitStrategy(Wait.forHttp("/_emulator/health", 8900))
    .start();
  const url = `http://${emulator.getHost()}:${emulator.getMappedPort(8900)}`;
  client = new batch.BatchServiceClient(new batch.BatchSharedKeyCredentials("local", key), url);
});

after(() => emulator?.stop());

test("task prints", { timeout: 60_000 }, async () => {
  await client.pool.add({
    id: "pool",
    vmSize: "standard_d2s_v3",
    targetDedicatedNodes: 1,
    virtualMachineConfiguration: {
      imageReference: { publisher: "canonical", offer: "ubuntu-24_04-lts", sku: "server" },
      nodeAgentSKUId: "batch.node.ubuntu 24.04",
    },
  });
  await client.job.add({ id: "job", poolInfo: { poolId: "pool" } });
  const commandLine = "/bin/bash -c 'echo $AZ_BATCH_TASK_ID'";
  await client.task.add("job", { id: "task", commandLine });

  while ((await client.task.get("job", "task")).state !== "completed") {
    await sleep(200);
  }

  const file = await client.file.getFromTask("job", "task", "stdout.txt");
  const chunks = await file.readableStreamBody.toArray();
  assert.equal(Buffer.concat(chunks).toString(), "task\n");
});
