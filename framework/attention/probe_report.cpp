#include "framework/attention/probe_report.h"

#include <exception>

namespace heddle {
namespace {

std::string text_of(const json::object& object, const char* key) {
  return json::value_to<std::string>(object.at(key));
}

}  // namespace

json::object report_object(const PluginReport& report) {
  json::array properties, kernels, notes;
  for (const std::string& p : report.properties) properties.emplace_back(p);
  for (const auto& k : report.kernels) {
    kernels.emplace_back(json::object{{"op", k.op}, {"kernel", k.kernel}});
  }
  for (const std::string& n : report.notes) notes.emplace_back(n);
  return {{"usable", report.usable},
          {"refusal", report.refusal},
          {"remedy", report.remedy},
          {"name", report.name},
          {"version", report.version},
          {"description", report.description},
          {"abi", report.abi},
          {"device_type", report.device_type},
          {"properties", properties},
          {"kernels", kernels},
          {"notes", notes}};
}

std::string write_report(const PluginReport& report) {
  return json::serialize(report_object(report));
}

PluginReport parse_report(const std::string& line) {
  PluginReport report;
  try {
    const json::value parsed = json::parse(line);
    const json::object& o = parsed.as_object();
    report.usable = o.at("usable").as_bool();
    report.refusal = text_of(o, "refusal");
    report.remedy = text_of(o, "remedy");
    report.name = text_of(o, "name");
    report.version = text_of(o, "version");
    report.description = text_of(o, "description");
    report.abi = text_of(o, "abi");
    report.device_type = o.at("device_type").to_number<uint32_t>();
    for (const json::value& p : o.at("properties").as_array()) {
      report.properties.push_back(json::value_to<std::string>(p));
    }
    for (const json::value& k : o.at("kernels").as_array()) {
      report.kernels.push_back({text_of(k.as_object(), "op"), text_of(k.as_object(), "kernel")});
    }
    for (const json::value& n : o.at("notes").as_array()) {
      report.notes.push_back(json::value_to<std::string>(n));
    }
  } catch (const std::exception& e) {
    report = {};
    report.refusal = std::string("made the probe write an unreadable report (") + e.what() + ")";
    report.remedy = "correct or remove the plugin";
  }
  return report;
}

}  // namespace heddle
