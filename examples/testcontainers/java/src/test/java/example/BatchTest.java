package example;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.microsoft.azure.batch.BatchClient;
import com.microsoft.azure.batch.auth.BatchSharedKeyCredentials;
import com.microsoft.azure.batch.protocol.models.ImageReference;
import com.microsoft.azure.batch.protocol.models.PoolInformation;
import com.microsoft.azure.batch.protocol.models.TaskAddParameter;
import com.microsoft.azure.batch.protocol.models.TaskState;
import com.microsoft.azure.batch.protocol.models.VirtualMachineConfiguration;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.junit.jupiter.Container;
import org.testcontainers.junit.jupiter.Testcontainers;
import org.testcontainers.utility.DockerImageName;

/** A task of Azure Batch, in a container of the emulator that lives as long as the tests. */
@Testcontainers
class BatchTest {
    private static final String IMAGE =
            System.getenv().getOrDefault("BATCH_EMULATOR_IMAGE", "batch-emulator");
    private static final String KEY = newKey();

    @Container
    private static final GenericContainer<?> EMULATOR =
            new GenericContainer<>(DockerImageName.parse(IMAGE))
                    .withEnv("BATCH_EMULATOR_KEY", KEY)
                    .withCommand("--boot-seconds", "0")
                    .withExposedPorts(8900)
                    .waitingFor(Wait.forHttp("/_emulator/health").forPort(8900));

    @Test
    @Timeout(value = 60, unit = TimeUnit.SECONDS)
    void taskPrints() throws Exception {
        String url = "http://" + EMULATOR.getHost() + ":" + EMULATOR.getMappedPort(8900);
        BatchClient client = BatchClient.open(new BatchSharedKeyCredentials(url, "local", KEY));

        ImageReference image =
                new ImageReference()
                        .withPublisher("canonical")
                        .withOffer("ubuntu-24_04-lts")
                        .withSku("server");
        VirtualMachineConfiguration machine =
                new VirtualMachineConfiguration()
                        .withImageReference(image)
                        .withNodeAgentSKUId("batch.node.ubuntu 24.04");
        client.poolOperations().createPool("pool", "standard_d2s_v3", machine, 1);
        client.jobOperations().createJob("job", new PoolInformation().withPoolId("pool"));
        String commandLine = "/bin/bash -c 'echo $AZ_BATCH_TASK_ID'";
        client.taskOperations()
                .createTask(
                        "job",
                        new TaskAddParameter()
                                .withId("task")
                                .withCommandLine(commandLine));

        while (client.taskOperations().getTask("job", "task").state() != TaskState.COMPLETED) {
            Thread.sleep(200);
        }

        ByteArrayOutputStream output = new ByteArrayOutputStream();
        client.fileOperations().getFileFromTask("job", "task", "stdout.txt", output);
        assertEquals("task\n", output.toString(StandardCharsets.UTF_8));
    }

    private static String newKey() {
        byte[] bytes = new byte[64];
        new SecureRandom().nextBytes(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }
}
