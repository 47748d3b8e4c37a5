"""The lab engine `labspe`, as a child process."""
