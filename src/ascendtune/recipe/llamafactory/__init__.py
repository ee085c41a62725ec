"""How does a LLaMA-Factory recipe become one of ours?"""
