"""A rewritten graph's numbers beside float32's: do they hold, and who is to blame?"""
