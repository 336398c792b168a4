"""Which line of a stack is the learner's."""

from course_lib.world import learner_code


def test_code_that_a_library_executes_is_no_line_of_the_learners():
    variables = {}
    exec("import sys; frame = sys._getframe()", variables)
    source_line = learner_code.source_line_on(variables["frame"])
    assert (
        source_line is not None
        and source_line.function == "test_code_that_a_library_executes_is_no_line_of_the_learners"
    )
