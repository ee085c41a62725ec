"""Where do a run's numbers go beside metrics.jsonl?"""
