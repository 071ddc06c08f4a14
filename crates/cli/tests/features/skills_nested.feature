@engine @skills_nested
Feature: Skills within skills

  Scenario: Twenty levels
    Given a skill at each of 20 levels
    When I read the skill at level 20
    Then the text is "level 20"
    When I read "iii://skills"
    Then the line of level 20 is indented by 38 spaces

  Scenario: Parents need not exist, and siblings stay
    Given the skill "a/b/c" with "C"
    And the skill "a/b/d" with "D"
    When I call "skills::unregister" with:
      """
      {"id": "a/b/c"}
      """
    Then it succeeds
    When I read "iii://a/b/d"
    Then the text is "D"
    When I read "iii://a/b"
    Then it fails with "not found"

  Scenario: A slashed id is never a function
    Given the function "resend::email" that answers:
      """
      "from the function"
      """
    And the skill "resend/email" with "from the registry"
    When I read "iii://resend/email"
    Then the text is "from the registry"
    When I read "iii://fn/resend/email"
    Then the text is "from the function"

  Scenario: fn below the first level is a name like any other
    Given the skill "docs/fn/reference" with "R"
    When I read "iii://docs/fn/reference"
    Then the text is "R"
