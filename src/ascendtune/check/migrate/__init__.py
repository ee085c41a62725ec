"""Which code written for CUDA does not run on Ascend?"""
