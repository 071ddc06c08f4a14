@engine @skills_resources
Feature: Reading resources

  Scenario: The index comes first, then skills by id
    Given the skill "b" with "# Bee\n\nBuzzes."
    And the skill "a" with "# Ay"
    When I call "skills::resources-list" with:
      """
      {}
      """
    Then the result at "/resources/0/uri" is "iii://skills"
    And the result at "/resources/0/mimeType" is "text/markdown"
    And the result at "/resources/1/uri" is "iii://a"
    And the result at "/resources/2/uri" is "iii://b"
    And the result at "/resources/2/name" is "Bee"
    And the result at "/resources/2/description" is "Buzzes."
    And the result at "/resources/3" is missing

  Scenario: Pages of resources
    Given 5 skills
    When I call "skills::resources-list" with:
      """
      {"limit": 2}
      """
    Then the result at "/resources/0/uri" is "iii://skills"
    And the result at "/resources/2/uri" is "iii://s001"
    And the result at "/resources/3" is missing
    When I ask for the next page of "skills::resources-list"
    Then the result at "/resources/0/uri" is "iii://s002"

  Scenario: A listing that would be too long for one answer is the first page
    Given 4000 skills with ids and titles as long as they may be
    When I call "skills::resources-list" with:
      """
      {}
      """
    Then the answer has fewer than 8388608 bytes
    And following its cursor, "skills::resources-list" has 4001 rows of "resources" in all

  Scenario: Templates
    When I call "skills::resources-templates" with:
      """
      {}
      """
    Then the result at "/resourceTemplates/0/uriTemplate" is "iii://{+id}"
    And the result at "/resourceTemplates/1/uriTemplate" is "iii://fn/{+function}"

  Scenario: The envelope of a read
    Given the skill "demo" with "# Demo"
    When I call "skills::resources-read" with:
      """
      {"uri": "iii://demo"}
      """
    Then the result is:
      """
      {"contents": [{"uri": "iii://demo", "mimeType": "text/markdown", "text": "# Demo"}]}
      """

  Scenario: The index
    Given the skill "resend" with "# Resend\n\nSends email.\n"
    And the skill "resend/email" with "# Email\n"
    When I read "iii://skills"
    Then the type is "text/markdown"
    And the text has the line "- [`resend`](iii://resend) — Resend — Sends email."
    And the text has the line "  - [`resend/email`](iii://resend/email) — Email"
    And the text has no line "## Custom skills"

  Scenario Outline: Sections are what a function answers
    Given the function "demo::section" that answers:
      """
      <answer>
      """
    When I read "iii://fn/demo/section"
    Then the type is "<type>"
    And the text is "<text>"

    Examples:
      | answer                           | type             | text                   |
      | "# Live"                         | text/markdown    | # Live                 |
      | {"content": "# Live"}            | text/markdown    | # Live                 |
      | {"content": "x", "other": 1}     | text/markdown    | x                      |
      | {"content": 5}                   | application/json | {\n  "content": 5\n}   |
      | [1, 2]                           | application/json | [\n  1,\n  2\n]        |
      | 5                                | application/json | 5                      |

  Scenario: A section is called with nothing
    Given the function "demo::echo" that answers with what it was given
    When I read "iii://fn/demo/echo"
    Then the type is "application/json"
    And the text is "{}"

  Scenario: Deep functions
    Given the function "a::b::c::d" that answers:
      """
      "deep"
      """
    When I read "iii://fn/a/b/c/d"
    Then the text is "deep"

  Scenario: Links in what a function answers are not followed
    Given the skill "inner" with "# Inner"
    And the function "demo::section" that answers:
      """
      {"content": "iii://inner"}
      """
    When I read "iii://fn/demo/section"
    Then the text is "iii://inner"

  Scenario Outline: What cannot be read
    When I read "<uri>"
    Then it fails with "<words>"

    Examples:
      | uri                        | words              |
      | iii://missing              | not found          |
      | iii://fn/missing/function  | not found          |
      | iii://Demo                 | lowercase          |
      | iii://demo/demo::guide     | lowercase          |
      | demo                       | iii://             |
      | https://example.com        | iii://             |
      | skill://demo/SKILL.md      | iii://             |
      | iii://fn/state/get         | internal namespace |
      | iii://fn/engine/x          | internal namespace |
      | iii://fn/stream/x          | internal namespace |
      | iii://fn/iii/x             | internal namespace |
      | iii://fn/mcp/x             | internal namespace |
      | iii://fn/a2a/x             | internal namespace |
      | iii://fn/skills/list       | internal namespace |
      | iii://fn/prompts/list      | internal namespace |
      | iii://fn/skill/fetch       | internal namespace |
      | iii://fn/configuration/x   | internal namespace |
      | iii://fn/worker/x          | internal namespace |
      | iii://fn/compose/x         | internal namespace |
      | iii://fn/sandbox/x         | internal namespace |
      | iii://fn/directory/x       | internal namespace |
      | iii://fn/shell/x           | internal namespace |
      | iii://fn/State/get         | internal namespace |
      | iii://fn/SKILLS/LIST       | internal namespace |
      | iii://fn/iii.on_change     | function           |
      | iii://fn/bridge.x          | function           |
      | iii://fn//state/get        | function           |
      | iii://fn/state%2Fget       | function           |
      | iii://fn/state::get        | function           |

  Scenario: A function that fails says why
    Given the function "demo::broken" that fails with "no luck today"
    When I read "iii://fn/demo/broken"
    Then it fails with "no luck today"

  Scenario: A function that answers too much
    Given the function "demo::flood" that answers with a text of 5000000 bytes
    When I read "iii://fn/demo/flood"
    Then it fails with "too large"
