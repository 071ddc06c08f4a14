@engine @skills_register
Feature: Registering skills

  Scenario: A skill is registered, listed, read and removed
    When I call "skills::register" with:
      """
      {"id": "demo", "skill": "# Demo\n\nA demo worker.\n"}
      """
    Then it succeeds
    And the result at "/id" is "demo"
    And the result at "/registered_at" is a time
    When I call "skills::list" with:
      """
      {}
      """
    Then the result at "/skills/0/id" is "demo"
    And the result at "/skills/0/bytes" is 23
    And the result at "/skills/0/origin" is "state"
    And the result at "/skills/0/registered_at" is a time
    And the result at "/skills/0/skill" is missing
    When I read "iii://demo"
    Then the text is "# Demo\n\nA demo worker.\n"
    When I call "skills::unregister" with:
      """
      {"id": "demo"}
      """
    Then the result is:
      """
      {"id": "demo", "removed": true}
      """
    When I call "skills::unregister" with:
      """
      {"id": "demo"}
      """
    Then the result is:
      """
      {"id": "demo", "removed": false}
      """
    When I read "iii://demo"
    Then it fails with "not found"

  Scenario: Registering again replaces the body and the time
    Given the skill "demo" with "# One"
    And the skill "demo" with "# Two"
    When I read "iii://demo"
    Then the text is "# Two"
    And "skills::list" has 1 row of "skills"

  Scenario Outline: What is refused
    When I call "skills::register" with:
      """
      <payload>
      """
    Then it fails with "<words>"
    And nothing is registered

    Examples:
      | payload                           | words             |
      | {"id": "", "skill": "x"}          | must be non-empty |
      | {"id": "a/", "skill": "x"}        | must be non-empty |
      | {"id": "Demo", "skill": "x"}      | lowercase         |
      | {"id": "a b", "skill": "x"}       | lowercase         |
      | {"id": "a::b", "skill": "x"}      | lowercase         |
      | {"id": "fn", "skill": "x"}        | reserved          |
      | {"id": "fn/x", "skill": "x"}      | reserved          |
      | {"id": "skills", "skill": "x"}    | reserved          |
      | {"id": "demo", "skill": ""}       | must be non-empty |
      | {"id": "demo", "skill": "   "}    | must be non-empty |
      | {"id": "demo"}                    | skill             |
      | {"skill": "x"}                    | id                |
      | {"id": 5, "skill": "x"}           | string            |
      | {}                                | id                |
      | null                              | id                |
      | [1]                               | skills::register  |

  Scenario: Sizes
    When I register "demo" with a body of 262144 bytes
    Then it succeeds
    When I register "large" with a body of 262145 bytes
    Then it fails with "too large"
    When I register an id with a segment of 65 characters
    Then it fails with "too long"
    When I register an id of 1025 characters
    Then it fails with "too long"

  Scenario: Errors carry a code and a message, nothing else
    When I call "skills::register" with:
      """
      {"id": "Demo", "skill": "x"}
      """
    Then it fails with the code "invalid_id"
    And the error has no stack trace

  Scenario: No payload is an empty one
    Given the skill "demo" with "# Demo"
    When I call "skills::list" with:
      """
      null
      """
    Then it succeeds
    And the result at "/skills/0/id" is "demo"

  Scenario: Pages
    Given 7 skills
    When I call "skills::list" with:
      """
      {"limit": 3}
      """
    Then the result at "/skills/0/id" is "s000"
    And the result at "/skills/2/id" is "s002"
    And the result at "/skills/3" is missing
    When I ask for the next page of "skills::list"
    Then the result at "/skills/0/id" is "s003"
    When I ask for the next page of "skills::list"
    Then the result at "/skills/0/id" is "s006"
    And the result at "/next_cursor" is missing
    When I call "skills::list" with:
      """
      {"limit": 0}
      """
    Then it fails with "limit must be between"
    When I call "skills::list" with:
      """
      {"cursor": "nonsense!"}
      """
    Then it fails with "cursor"

  Scenario: Rows written behind the registry's back count at once
    When I call "state::set" with:
      """
      {"scope": "skills", "key": "direct", "value": {"id": "direct", "skill": "# Direct", "registered_at": "2026-01-01T00:00:00Z"}}
      """
    Then "skills::list" has the row "direct" of "skills"
    When I read "iii://direct"
    Then the text is "# Direct"
    When I call "state::delete" with:
      """
      {"scope": "skills", "key": "direct"}
      """
    Then "skills::list" has 0 rows of "skills"

  Scenario: Rows that are no skills are not shown
    When I call "state::set" with:
      """
      {"scope": "skills", "key": "junk", "value": 5}
      """
    Then "skills::list" has 0 rows of "skills"
    When I call "state::delete" with:
      """
      {"scope": "skills", "key": "junk"}
      """
    Then it succeeds

  Scenario: The state holds what the seed says
    Given the skill "demo" with "# Demo"
    When I call "state::get" with:
      """
      {"scope": "skills", "key": "demo"}
      """
    Then the result at "/id" is "demo"
    And the result at "/skill" is "# Demo"
    And the result at "/registered_at" is a time

  Scenario Outline: Every function publishes its schemas
    Then the function "<id>" is listed with schemas

    Examples:
      | id                          |
      | skills::register            |
      | skills::unregister          |
      | skills::list                |
      | skills::resources-list      |
      | skills::resources-read      |
      | skills::resources-templates |
      | skills::fetch_skill         |
      | skill::fetch                |
      | prompts::register           |
      | prompts::unregister         |
      | prompts::list               |
      | prompts::mcp-list           |
      | prompts::mcp-get            |
