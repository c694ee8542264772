using System.Security.Cryptography;
using Azure;
using Azure.Compute.Batch;
using DotNet.Testcontainers.Builders;
using DotNet.Testcontainers.Containers;
using Xunit;

namespace BatchEmulatorExample;

/// <summary>A task of Azure Batch, in a container of the emulator that lives as long as the tests.</summary>
public sealed class BatchTest : IAsyncLifetime
{
    private static readonly string Image =
        Environment.GetEnvironmentVariable("BATCH_EMULATOR_IMAGE") ?? "batch-emulator";

    private readonly string _key;
    private readonly IContainer _emulator;

    public BatchTest()
    {
        _key = Convert.ToBase64String(RandomNumberGenerator.GetBytes(64));
        _emulator = new ContainerBuilder()
            .WithImage(Image)
            .WithEnvironment("BATCH_EMULATOR_KEY", _key)
            .WithCommand("--boot-seconds", "0")
            .WithPortBinding(8900, true)
            .WithWaitStrategy(Wait.ForUnixContainer().UntilHttpRequestIsSucceeded(
                request => request.ForPort(8900).ForPath("/_emulator/health")))
            .Build();
    }

    public Task InitializeAsync() => _emulator.StartAsync();

    public Task DisposeAsync() => _emulator.DisposeAsync().AsTask();

    [Fact]
    public async Task TaskPrints()
    {
        var url = new Uri($"http://{_emulator.Hostname}:{_emulator.GetMappedPublicPort(8900)}");
        var client = new BatchClient(url, new AzureNamedKeyCredential("local", _key));

        var image = new BatchVmImageReference
        {
            Publisher = "canonical",
            Offer = "ubuntu-24_04-lts",
            Sku = "server",
        };
        await client.CreatePoolAsync(new BatchPoolCreateOptions("pool", "standard_d2s_v3")
        {
            VirtualMachineConfiguration =
                new VirtualMachineConfiguration(image, "batch.node.ubuntu 24.04"),
            TargetDedicatedNodes = 1,
        });
        await client.CreateJobAsync(
            new BatchJobCreateOptions("job", new BatchPoolInfo { PoolId = "pool" }));
        await client.CreateTaskAsync(
            "job", new BatchTaskCreateOptions("task", "/bin/bash -c 'echo $AZ_BATCH_TASK_ID'"));

        using var timeout = new CancellationTokenSource(TimeSpan.FromMinutes(1));
        BatchTask task = await client.GetTaskAsync("job", "task");
        while (task.State != BatchTaskState.Completed)
        {
            await Task.Delay(200, timeout.Token);
            task = await client.GetTaskAsync("job", "task");
        }

        BinaryData output = await client.GetTaskFileAsync("job", "task", "stdout.txt");
        Assert.Equal("task\n", output.ToString());
    }
}
