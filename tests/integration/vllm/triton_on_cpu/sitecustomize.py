"""Python imports this first, in every process of an engine that has this folder on its path."""
import triton_on_cpu

triton_on_cpu.install()
