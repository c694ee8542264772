import com.microsoft.azure.batch.BatchClient;
import com.microsoft.azure.batch.DetailLevel;
import com.microsoft.azure.batch.auth.BatchSharedKeyCredentials;
import com.microsoft.azure.batch.protocol.models.BatchErrorException;
import com.microsoft.azure.batch.protocol.models.CloudTask;
import com.microsoft.azure.batch.protocol.models.FileProperties;
import com.microsoft.azure.batch.protocol.models.ImageReference;
import com.microsoft.azure.batch.protocol.models.PoolInformation;
import com.microsoft.azure.batch.protocol.models.TaskAddParameter;
import com.microsoft.azure.batch.protocol.models.TaskState;
import com.microsoft.azure.batch.protocol.models.VirtualMachineConfiguration;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;

/** A pool, a job with 150 tasks, their output; then everything is deleted. */
public class FirstJob {
    private static final int TASKS = 150;
    /** `createTasks` of more than one request waits for a thread that has already ended. */
    private static final int MOST_AT_ONCE = 100;

    private static void done(String check) {
        System.out.println("done: " + check);
    }

    private static void require(boolean condition, Object found) {
        if (!condition) {
            throw new AssertionError(found);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BatchClient client = BatchClient.open(new BatchSharedKeyCredentials(
            System.getenv("AZURE_BATCH_ENDPOINT"),
            System.getenv("AZURE_BATCH_ACCOUNT"),
            System.getenv("AZURE_BATCH_ACCESS_KEY")));
        VirtualMachineConfiguration machine = new VirtualMachineConfiguration()
            .withNodeAgentSKUId("batch.node.ubuntu 24.04")
            .withImageReference(new ImageReference()
                .withPublisher("canonical").withOffer("ubuntu-24_04-lts").withSku("server"));
        String pool = "java-pool";
        String job = "java-job";

        client.poolOperations().createPool(pool, "standard_d2s_v3", machine, 2);
        require(client.poolOperations().existsPool(pool), "no pool");
        done("pool");

        client.jobOperations().createJob(job, new PoolInformation().withPoolId(pool));
        done("job");

        List<TaskAddParameter> tasks = new ArrayList<>();
        for (int number = 0; number < TASKS; number++) {
            tasks.add(new TaskAddParameter().withId("task-" + number)
                .withCommandLine("/bin/sh -c 'echo hello from " + number + "'"));
        }
        for (int first = 0; first < TASKS; first += MOST_AT_ONCE) {
            int end = Math.min(first + MOST_AT_ONCE, TASKS);
            client.taskOperations().createTasks(job, tasks.subList(first, end));
        }
        done("tasks");

        while (client.jobOperations().getTaskCounts(job).completed() < TASKS) {
            Thread.sleep(200);
        }
        require(client.jobOperations().getTaskCounts(job).succeeded() == TASKS, "failed tasks");
        done("counts");

        // a blank filter is sent, and signed, as it is
        DetailLevel all = new DetailLevel.Builder().withFilterClause("").build();
        int listed = 0;
        for (CloudTask task : client.taskOperations().listTasks(job, all)) {
            require(task.state() == TaskState.COMPLETED, task.state());
            require(task.executionInfo().exitCode() == 0, task.executionInfo().exitCode());
            listed++;
        }
        require(listed == TASKS, listed);
        done("list");

        FileProperties file =
            client.fileOperations().getFilePropertiesFromTask(job, "task-7", "stdout.txt");
        require(file.contentLength() == 13, file.contentLength());
        require(file.lastModified() != null, "no lastModified");
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        client.fileOperations().getFileFromTask(job, "task-7", "stdout.txt", text);
        require(text.toString("UTF-8").equals("hello from 7\n"), text);
        done("output");

        try {
            client.taskOperations().getTask(job, "none");
            throw new AssertionError("a task that was never added");
        } catch (BatchErrorException expected) {
            require(expected.body().code().equals("TaskNotFound"), expected.body().code());
        }
        done("error");

        client.jobOperations().deleteJob(job);
        client.poolOperations().deletePool(pool);
        while (client.poolOperations().existsPool(pool)) {
            Thread.sleep(200);
        }
        done("deleted");
        System.exit(0); // threads of the HTTP client would stay for minutes
    }
}
