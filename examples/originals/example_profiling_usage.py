"""How to use the profiling library, like the original example: a region, a decorator, statistics."""

import time

import hotloop
from hotloop import profile, profile_function


@profile_function("convlstm_forward_pass")
def forward() -> None:
    time.sleep(0.002)


def main() -> None:
    hotloop.start("example_profiling_capture")
    for _ in range(20):
        with profile("env_step"), profile("env_rgb_rendering"):
            time.sleep(0.001)
        forward()
    print(hotloop.summary())
    folder = hotloop.stop()
    print(f"next: hotloop report {folder}")


if __name__ == "__main__":
    main()
