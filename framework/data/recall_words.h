// The vocabulary of the embedded recall corpus: 147 words, id = position in this order:
//   0 bos | 1 full stop | 2 question mark (spare) | 3.. 64 names | 67.. 16 values | 83.. 64 words.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace heddle::recall_words {

inline constexpr int32_t kBos = 0;
inline constexpr int32_t kStop = 1;
inline constexpr int32_t kMark = 2;
inline constexpr int32_t kFirstName = 3;
inline constexpr int32_t kNames = 64;
inline constexpr int32_t kFirstValue = kFirstName + kNames;
inline constexpr int32_t kValues = 16;
inline constexpr int32_t kFirstWord = kFirstValue + kValues;
inline constexpr int32_t kWords = 64;
inline constexpr int32_t kVocabulary = kFirstWord + kWords;

// Inside the 64 words: the two leads, then the filler by place in its sentence.
inline constexpr int32_t kFactLead = kFirstWord;
inline constexpr int32_t kRecallLead = kFirstWord + 1;
inline constexpr int32_t kFillerFirst = kFirstWord + 2;      // 4
inline constexpr int32_t kFillerSecond = kFillerFirst + 4;   // 16: 4 branches of 4
inline constexpr int32_t kFillerThird = kFillerSecond + 16;  // 16: 4 branches of 4

inline constexpr std::array<std::string_view, kVocabulary> kText = {
    "", ".", "?",
    // names
    "Ada's", "Ben's", "Cara's", "Dan's", "Eva's", "Finn's", "Gina's", "Hugo's", "Ida's", "Jack's",
    "Kate's", "Leo's", "Mia's", "Ned's", "Olga's", "Paul's", "Queenie's", "Rob's", "Sara's",
    "Tom's", "Uma's", "Vic's", "Wendy's", "Xena's", "Yuri's", "Zoe's", "Anna's", "Bill's",
    "Clara's", "Dora's", "Emil's", "Fay's", "Greta's", "Hal's", "Ivy's", "Jane's", "Karl's",
    "Lily's", "Max's", "Nora's", "Otto's", "Pia's", "Quinn's", "Rosa's", "Sam's", "Tina's", "Ugo's",
    "Vera's", "Will's", "Ximena's", "Yara's", "Zack's", "Alma's", "Bob's", "Cleo's", "Dirk's",
    "Ella's", "Fred's", "Gwen's", "Hans's", "Iris's", "Joan's", "Kurt's", "Lena's",
    // values
    "red", "blue", "green", "gold", "white", "black", "brown", "pink", "gray", "purple", "orange",
    "silver", "yellow", "violet", "amber", "crimson",
    // leads
    "here", "saw",
    // filler, first word
    "old", "small", "quiet", "distant",
    // filler, second word: weather, animals, water, people
    "wind", "rain", "snow", "fog", "fox", "owl", "hare", "crow", "river", "lake", "stream", "tide",
    "miller", "sailor", "baker", "weaver",
    // filler, third word, by the branch of the second
    "falls", "gathers", "passes", "returns", "sleeps", "listens", "runs", "waits", "glitters",
    "rises", "freezes", "murmurs", "sings", "works", "rests", "smiles",
    // words that no story uses
    "the", "a", "and", "of", "in", "to", "is", "was", "it", "on", "by", "at", "with", "under",
    "over", "near", "then", "now", "again", "never", "always", "who", "what", "where", "when",
    "why"};

}  // namespace heddle::recall_words
