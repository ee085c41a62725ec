"""What in a code base will not move from CUDA to Ascend?"""
