"""How is a LLaMA-Factory recipe translated into a native one?"""
