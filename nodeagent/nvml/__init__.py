"""NVML behind one port: what the hardware says, and never longer than a deadline.

port.Nvml ◀── library.PynvmlSession (blocking, one process-wide library)
▲
guard.Guarded: every call in a lane of its own with a deadline; a lane that hangs is given up, never waited for
"""
