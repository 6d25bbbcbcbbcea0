// What both programs share: options in the form `--name value`, enums by their schema names, and exit codes.
//
//   0 done   1 our fault, the daemon's, or the wire's   2 usage   3 refused by the daemon (its answer on stderr)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "fenced.hpp"

namespace fenced {

// The command line is wrong: exit code 2.
struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Options {
 public:
  // Takes `--name value` pairs of the `known` names; anything else is Usage.
  Options(int argc, char** argv, const std::vector<std::string>& known) {
    for (int index = 1; index < argc; index += 2) {
      const std::string name = argv[index];
      bool found = false;
      for (const std::string& option : known) found = found || name == option;
      if (!found) throw Usage("unknown option " + name);
      if (index + 1 == argc) throw Usage(name + ": expected a value");
      if (!values_.emplace(name, argv[index + 1]).second) throw Usage(name + ": given twice");
    }
  }

  bool has(const std::string& name) const { return values_.count(name) != 0; }

  const std::string& text(const std::string& name) const {
    const auto value = values_.find(name);
    if (value == values_.end()) throw Usage(name + ": missing");
    return value->second;
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    return has(name) ? text(name) : otherwise;
  }

  // Decimal digits only, within least..most.
  std::uint64_t number(const std::string& name, std::uint64_t otherwise, std::uint64_t least,
                       std::uint64_t most) const {
    return has(name) ? parse(name, text(name), least, most) : otherwise;
  }

  // A decimal number above 0.
  double positive(const std::string& name, double otherwise) const {
    if (!has(name)) return otherwise;
    char* end = nullptr;
    const double value = std::strtod(text(name).c_str(), &end);
    if (!text(name).empty() && *end == '\0' && std::isfinite(value) && value > 0) return value;
    throw Usage(name + ": expected a number above 0, found '" + text(name) + "'");
  }

  // `count` numbers between `separator`s, as in 1928x1208.
  std::vector<std::uint32_t> numbers(const std::string& name, std::size_t count, char separator) const {
    std::vector<std::uint32_t> numbers;
    std::string rest = text(name) + separator;
    for (std::size_t end; (end = rest.find(separator)) != std::string::npos; rest.erase(0, end + 1)) {
      constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
      numbers.push_back(static_cast<std::uint32_t>(parse(name, rest.substr(0, end), 0, most)));
    }
    if (numbers.size() != count) {
      throw Usage(name + ": expected " + std::to_string(count) + " numbers between '" + separator + "', found " +
                  text(name));
    }
    return numbers;
  }

  // An enumerant by the name the schema gives it, `unspecified` included: the daemon refuses that one by name.
  template <typename E>
  E enumerant(const std::string& name) const {
    std::string known;
    for (const auto enumerant : capnp::Schema::from<E>().getEnumerants()) {
      const std::string spelling = enumerant.getProto().getName().cStr();
      if (spelling == text(name)) return static_cast<E>(enumerant.getOrdinal());
      known += " " + spelling;
    }
    throw Usage(name + ": expected one of" + known + ", found " + text(name));
  }
  template <typename E>
  E enumerant(const std::string& name, E otherwise) const {
    return has(name) ? enumerant<E>(name) : otherwise;
  }

 private:
  static std::uint64_t parse(const std::string& name, const std::string& text, std::uint64_t least,
                             std::uint64_t most) {
    std::uint64_t value = 0;
    bool good = !text.empty() && text.size() < 19;
    for (const char digit : text) {
      good = good && digit >= '0' && digit <= '9';
      if (good) value = value * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    if (good && value >= least && value <= most) return value;
    throw Usage(name + ": expected a number from " + std::to_string(least) + " to " + std::to_string(most) +
                ", found '" + text + "'");
  }

  std::map<std::string, std::string> values_;
};

// Runs a program's body and turns what it throws into a sentence on stderr and the exit code.
template <typename Body>
int run_program(const char* name, const char* usage, int argc, char** argv, Body body) {
  try {
    if (argc == 2 && std::string(argv[1]) == "--help") {
      std::cout << usage;
      return 0;
    }
    stop_on_signals();
    body(argc, argv);
    return 0;
  } catch (const Refused& refused) {
    std::cerr << name << ": " << refused.what() << std::endl;
    return 3;
  } catch (const Usage& wrong) {
    std::cerr << name << ": " << wrong.what() << "\n" << usage;
    return 2;
  } catch (const kj::Exception& malformed) {
    std::cerr << name << ": message from the daemon: " << malformed.getDescription().cStr() << std::endl;
  } catch (const std::exception& fault) {
    std::cerr << name << ": " << fault.what() << std::endl;
  }
  return 1;
}

}  // namespace fenced
