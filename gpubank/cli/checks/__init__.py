"""What `gpubank doctor` checks: one module for each thing that the bank needs."""
