// config_fields.h: reads the fields of a model's config.json, of which those that change what the model
// computes must have values that this program implements.
//   https://huggingface.co/docs/transformers/main_classes/configuration
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// Errors are UsageErrors that name the file and the field.
class ConfigFields {
public:
    explicit ConfigFields(const std::string& path);

    const nlohmann::json& all() const { return fields_; }
    // The model's name in messages: "GPT-2".
    void set_title(std::string title) { title_ = std::move(title); }

    // A whole number from 1 to most. alias: another name of the field that transformers accepts
    // (attribute_map).
    int size(const char* name, const char* alias, int most) const;
    int size(const char* name, int most) const { return size(name, name, most); }
    // The same for a field that may be missing or null, which means `otherwise`.
    int size_or(const char* name, int most, int otherwise) const;
    // A positive number, or `otherwise` if the field is missing; null is an error, as in transformers.
    double positive_or(const char* name, double otherwise) const;
    // True or false, or `otherwise` if the field is missing.
    bool flag_or(const char* name, bool otherwise) const;
    // The fields of the object that a field holds; none if it is missing or null. Messages call them
    // "name.field".
    ConfigFields inside(const char* name) const;
    // Error if the field has a value other than the accepted ones. A missing field is accepted, because its
    // default is among them.
    void check(const char* name, const std::vector<nlohmann::json>& accepted) const;
    // The same for a number, within a rounding of its text.
    void check_number(const char* name, double accepted) const;

private:
    ConfigFields(std::string path, std::string title, std::string parent, nlohmann::json fields);
    [[noreturn]] void refuse(const char* name, const std::string& expected) const;

    std::string path_, title_, parent_;
    nlohmann::json fields_;
};
