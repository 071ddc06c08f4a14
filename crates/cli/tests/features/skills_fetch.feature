@engine @skills_fetch
Feature: Fetching several skills at once

  Scenario Outline: One and many
    Given the skill "a" with "A"
    And the skill "b" with "B"
    When I call "<function>" with:
      """
      <payload>
      """
    Then the result is the text "<text>"

    Examples:
      | function            | payload                                          | text                                              |
      | skill::fetch        | {"uri": "iii://a"}                               | # iii://a\n\nA                                    |
      | skills::fetch_skill | {"uri": "iii://a"}                               | # iii://a\n\nA                                    |
      | skill::fetch        | {"uris": ["iii://a", "iii://b"]}                 | # iii://a\n\nA\n\n---\n\n# iii://b\n\nB           |
      | skill::fetch        | {"uri": "iii://b", "uris": ["iii://a"]}          | # iii://a\n\nA                                    |
      | skill::fetch        | {"uri": "iii://b", "uris": []}                   | # iii://b\n\nB                                    |
      | skill::fetch        | {"uri": " iii://a ", "uris": ["  "]}             | # iii://a\n\nA                                    |

  Scenario Outline: What is refused before anything is read
    When I call "skill::fetch" with:
      """
      <payload>
      """
    Then it fails with "<words>"

    Examples:
      | payload                                | words              |
      | {}                                     | must be non-empty  |
      | null                                   | must be non-empty  |
      | {"uri": "  "}                          | must be non-empty  |
      | {"uris": ["", " "]}                    | must be non-empty  |
      | {"uri": "https://example.com"}         | iii://             |
      | {"uris": ["iii://a", "file:///x"]}     | iii://             |
      | {"uri": 5}                             | string             |
      | {"uri": "iii://missing"}               | not found          |
      | {"uri": "iii://fn/state/get"}          | internal namespace |

  Scenario: Sections and skills in one text
    Given the skill "a" with "A"
    And the function "demo::live" that answers:
      """
      {"content": "now"}
      """
    When I call "skill::fetch" with:
      """
      {"uris": ["iii://a", "iii://fn/demo/live"]}
      """
    Then the result is the text "# iii://a\n\nA\n\n---\n\n# iii://fn/demo/live\n\nnow"
