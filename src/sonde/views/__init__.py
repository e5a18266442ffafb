"""Views: a question about a run in, a spec that is ready to draw out. Pure, without a framework.

`questions.py` is what can be asked, `specs/` what is answered, `routes.py` which belongs to
which. One module per view holds the function `answer(run, question)`. The page, the notebook, the
report and static figures all draw the same specs.
"""
