"""Words in region names that hint at what a region does, where its category does not say so.

A hint never makes a finding: it chooses between readings of the same evidence.
"""

STORING = "store push add remember insert append memory memorize replay buffer record put transition"
TRANSFERRING = "tensor tensors device upload download cuda gpu h2d d2h transfer"
SYNCHRONISING = "item items sync synchronize synchronise scalar scalars"
CHOOSING = "policy act action actions choose select infer inference predict decide"
LOADING = "batch batches minibatch load loader fetch next data"
LOCKS = "lock locks locked mutex acquire semaphore"
LOGGING = "log logs logger logging print csv metric metrics report stats history monitor dashboard journal"
EVALUATING = "eval evaluate evaluation validate validation test exam assess benchmark"
SAVING = "checkpoint checkpoints ckpt save saving snapshot dump persist backup"
RESETTING = "reset resets resetting restart"
DRAWING = "render rendering draw drawing paint picture image canvas pixels screen raster rgb"
RESIZING = "resize resizing rescale shrink downsample downscale warp interpolate zoom thumbnail"
COLLECTING_GARBAGE = "gc garbage"
