"""Run tasks on a node: folders, environment, resource files, the process, output files.

Where the documentation is silent, the choices are ours:

- The command line is split as a POSIX shell would (shlex) and executed without a shell.
- A process ended by signal n has exit code -n, as task reports of the service show.
- Ending a task sends SIGTERM to all processes that it started, including those that left its
  session, and SIGKILL after a grace period. Processes in a command's process group end with it.
- A retry finds the working directory of the last attempt; stdout.txt and stderr.txt are new.
- AZ_BATCH_TASK_USER has the value of the service, not the user that runs the task.
- Output files of a terminated task are uploaded, those of a task whose node was lost are not.
- A wildcard's blob names are relative to the folder of the pattern before its first wildcard.
- A pattern that matches no file is not an error, and unknown variables in it stay unchanged.
- Links to folders are not followed by `**`.
"""
