"""Which fused operators stand in for parts of a model?"""
