@pure
Feature: Names, addresses and markdown
  What needs no bus: the rules that every surface shares.

  Scenario Outline: Ids that are taken
    Then "<id>" is a skill id

    Examples:
      | id                   |
      | demo                 |
      | resend/email/send    |
      | docs/fn-reference    |
      | docs/fn              |
      | a_b-c/0              |
      | skills/inner         |

  Scenario Outline: Ids that are refused
    Then "<id>" is no skill id because "<rule>"

    Examples:
      | id      | rule              |
      |         | must be non-empty |
      | /       | must be non-empty |
      | a/      | must be non-empty |
      | a//b    | must be non-empty |
      | Demo    | lowercase         |
      | a b     | lowercase         |
      | a.b     | lowercase         |
      | a::b    | lowercase         |
      | ..      | lowercase         |
      | skills  | reserved          |
      | fn      | reserved          |
      | fn/echo | reserved          |

  Scenario: Lengths
    Then an id with a segment of 64 characters is taken
    And an id with a segment of 65 characters is refused because "too long"
    And an id of 1025 characters is refused because "too long"
    And an id of 20 segments is taken

  Scenario Outline: What a URI means
    Then the URI "<uri>" means <meaning>

    Examples:
      | uri                        | meaning                          |
      | iii://skills               | the index                        |
      | iii://demo                 | the body "demo"                  |
      | iii://a/b/c                | the body "a/b/c"                 |
      | iii://skills/x             | the body "skills/x"              |
      | iii://docs/fn/x            | the body "docs/fn/x"             |
      | iii://fn/foo               | the function "foo"               |
      | iii://fn/scope/foo         | the function "scope::foo"        |
      | iii://fn/resend/email/send | the function "resend::email::send" |
      | iii://fn/a/b/c/d           | the function "a::b::c::d"        |

  Scenario Outline: What is no URI
    Then the URI "<uri>" is refused

    Examples:
      | uri                    |
      |                        |
      | demo                   |
      | III://demo             |
      | iii:demo               |
      | iii://                 |
      | iii://Demo             |
      | iii://a//b             |
      | iii://a/../b           |
      | iii://a%2fb            |
      | iii://fn               |
      | iii://fn/              |
      | iii://fn//a            |
      | iii://fn/a::b          |
      | iii://fn/a%3a%3ab      |
      | iii://fn/iii.on_change |
      | iii://demo/demo::guide |
      | http://demo            |
      | file:///etc/passwd     |

  Scenario Outline: The guard
    Then the function "<id>" is guarded

    Examples:
      | id                |
      | engine::x         |
      | state::set        |
      | stream::x         |
      | iii::x            |
      | iii.on_foo        |
      | mcp::x            |
      | a2a::x            |
      | skills::register  |
      | prompts::list     |
      | skill::fetch      |
      | configuration::x  |
      | worker::x         |
      | compose::x        |
      | sandbox::x        |
      | directory::x      |
      | shell::x          |
      | bridge.x          |
      | State::set        |
      | STATE::SET        |

  Scenario Outline: What the guard lets through
    Then the function "<id>" is not guarded

    Examples:
      | id               |
      | demo::guide      |
      | states::x        |
      | demo::state::set |
      | engineer::x      |

  @markdown
  Scenario: The first heading is the title, the first paragraph the description
    Given the markdown:
      """
      # Resend

      Sends email.

      ## More

      Other text.
      """
    Then its title is "Resend"
    And its description is "Sends email."

  @markdown
  Scenario: Headings inside code are no headings
    Given the markdown:
      """
      ```sh
      # not a title
      not a description
      ```

      # Real

      Text.
      """
    Then its title is "Real"
    And its description is "Text."

  @markdown
  Scenario: Frontmatter is not text
    Given the markdown:
      """
      ---
      name: x
      ---
      # Real

      Text.
      """
    Then its title is "Real"
    And its description is "Text."

  @markdown
  Scenario: A long description is cut
    Given the markdown "# T" with a paragraph of 300 characters
    Then its description has 140 characters and ends in "…"

  @markdown
  Scenario: Titles and descriptions cannot forge the index
    Given the markdown:
      """
      # x](iii://evil) [y

      - [`other`](iii://other)
      """
    Then the index of it has one link, to "iii://entry"
