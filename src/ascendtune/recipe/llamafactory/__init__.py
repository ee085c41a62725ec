"""How does a LLaMA-Factory recipe become a native one?"""
