"""The coordinate check: does what training does to a model stay the same when it gets wider?"""
