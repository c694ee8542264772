"""What happens on a node: folders, environment, files in, the process, files out.

Where the documentation is silent, the choices are ours:

- The command line is split as a POSIX shell would (shlex) and executed without a shell.
- A process ended by signal n has exit code -n, as task reports of the service show.
- Ending a task sends SIGTERM to everything it started, also to what left its session, and SIGKILL
  after a grace period; what a command leaves in its process group ends with it.
- A retry finds the working directory as the last try left it; stdout.txt and stderr.txt start anew.
- Tasks run as the user of the emulator: AZ_BATCH_TASK_USER says what the service would say.
- Output files of a terminated task are uploaded, those of a task whose node was lost are not.
- A wildcard's blob names are relative to the folder of the pattern before its first wildcard.
- Output files that match nothing are no error, and unknown variables in a pattern stay as they are.
- Links to folders are not followed by `**`.
"""
