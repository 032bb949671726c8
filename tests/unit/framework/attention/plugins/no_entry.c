/* A library that is no plugin. */
int heddle_fixture_answer(void);
int heddle_fixture_answer(void) { return 42; }
