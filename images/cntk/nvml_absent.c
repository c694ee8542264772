/* What CNTK's GPU build links against where no NVIDIA driver is mounted into the container.

   It needs libnvidia-ml.so.1 to load at all; with this one it finds no GPU and uses the CPU. The
   driver's own library, when there is one, is found first. 9 is NVML_ERROR_DRIVER_NOT_LOADED. */
#define ABSENT(name) int name(void) { return 9; }
ABSENT(nvmlInit_v2)
ABSENT(nvmlShutdown)
ABSENT(nvmlDeviceGetComputeRunningProcesses)
ABSENT(nvmlDeviceGetHandleByIndex_v2)
ABSENT(nvmlDeviceGetMemoryInfo)
ABSENT(nvmlDeviceGetPciInfo_v3)
ABSENT(nvmlDeviceGetUUID)
ABSENT(nvmlDeviceGetUtilizationRates)
ABSENT(nvmlSystemGetProcessName)
const char *nvmlErrorString(int code) { (void)code; return "no NVIDIA driver in this container"; }
