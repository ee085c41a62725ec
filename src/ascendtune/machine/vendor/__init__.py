"""What must be known of a vendor's devices before torch is imported?"""
