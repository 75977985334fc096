"""For tests of your own: captures made from a description, and runs with a known defect in them."""

from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

__all__ = ["ProcessSpec", "Spec", "ThreadSpec", "make_capture"]
