// A pool, a job with 150 tasks, their output; then everything is deleted.
//
// This SDK has no shared key for Batch, so the program signs in with Microsoft Entra ID.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/services/batch/2020-09-01.12.0/batch"
	"github.com/Azure/go-autorest/autorest"
	"github.com/Azure/go-autorest/autorest/azure/auth"
)

const tasks = 150

func done(check string) { fmt.Println("done: " + check) }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func require(condition bool, found any) {
	if !condition {
		log.Fatalf("unexpected: %v", found)
	}
}

func text(value string) *string { return &value }

func main() {
	ctx, endpoint := context.Background(), os.Getenv("AZURE_BATCH_ENDPOINT")
	authorizer, err := auth.NewAuthorizerFromEnvironmentWithResource("https://batch.core.windows.net/")
	must(err)
	pools, jobs := batch.NewPoolClient(endpoint), batch.NewJobClient(endpoint)
	all, files := batch.NewTaskClient(endpoint), batch.NewFileClient(endpoint)
	for _, client := range []*autorest.Client{&pools.Client, &jobs.Client, &all.Client, &files.Client} {
		client.Authorizer = authorizer
	}
	pool, job, nodes := "go-pool", "go-job", int32(2)

	_, err = pools.Add(ctx, batch.PoolAddParameter{
		ID:                   &pool,
		VMSize:               text("standard_d2s_v3"),
		TargetDedicatedNodes: &nodes,
		VirtualMachineConfiguration: &batch.VirtualMachineConfiguration{
			ImageReference: &batch.ImageReference{
				Publisher: text("canonical"), Offer: text("ubuntu-24_04-lts"), Sku: text("server"),
			},
			NodeAgentSKUID: text("batch.node.ubuntu 24.04"),
		},
	}, nil, nil, nil, nil)
	must(err)
	done("pool")

	_, err = jobs.Add(ctx, batch.JobAddParameter{
		ID: &job, PoolInfo: &batch.PoolInformation{PoolID: &pool},
	}, nil, nil, nil, nil)
	must(err)
	done("job")

	for first := 0; first < tasks; first += 100 {
		var some []batch.TaskAddParameter
		for number := first; number < min(first+100, tasks); number++ {
			some = append(some, batch.TaskAddParameter{
				ID:          text(fmt.Sprintf("task-%d", number)),
				CommandLine: text(fmt.Sprintf("/bin/sh -c 'echo hello from %d'", number)),
			})
		}
		added, err := all.AddCollection(ctx, job, batch.TaskAddCollectionParameter{Value: &some}, nil, nil, nil, nil)
		must(err)
		require(len(*added.Value) == len(some), len(*added.Value))
	}
	done("tasks")

	for {
		found, err := jobs.GetTaskCounts(ctx, job, nil, nil, nil, nil)
		must(err)
		if *found.TaskCounts.Completed == tasks {
			require(*found.TaskCounts.Succeeded == tasks, *found.TaskCounts.Failed)
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	done("counts")

	listed, most := 0, int32(100)
	found, err := all.ListComplete(ctx, job, "", "", "", &most, nil, nil, nil, nil)
	for ; err == nil && found.NotDone(); err = found.NextWithContext(ctx) {
		require(found.Value().State == batch.TaskStateCompleted, found.Value().State)
		require(*found.Value().ExecutionInfo.ExitCode == 0, *found.Value().ExecutionInfo.ExitCode)
		listed++
	}
	must(err)
	require(listed == tasks, listed)
	done("list")

	about, err := files.GetPropertiesFromTask(ctx, job, "task-7", "stdout.txt", nil, nil, nil, nil, nil, nil)
	must(err)
	require(about.Header.Get("Content-Length") == "13", about.Header)
	answer, err := files.GetFromTask(ctx, job, "task-7", "stdout.txt", nil, nil, nil, nil, "", nil, nil)
	must(err)
	output, err := io.ReadAll(*answer.Value)
	must(err)
	require(string(output) == "hello from 7\n", string(output))
	done("output")

	_, err = all.Get(ctx, job, "none", "", "", nil, nil, nil, nil, "", "", nil, nil)
	var refused autorest.DetailedError
	require(errors.As(err, &refused) && refused.StatusCode == 404, err)
	done("error")

	_, err = jobs.Delete(ctx, job, nil, nil, nil, nil, "", "", nil, nil)
	must(err)
	_, err = pools.Delete(ctx, pool, nil, nil, nil, nil, "", "", nil, nil)
	must(err)
	for {
		gone, _ := pools.Exists(ctx, pool, nil, nil, nil, nil, "", "", nil, nil)
		if gone.StatusCode == 404 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	done("deleted")
}
